/* The header of a safetensors file: a length, JSON, and rules about what the JSON says. Strict: what
 * the format leaves open and peers have been bitten by is refused (duplicate keys, holes, bytes after
 * the last tensor, a header that does not begin with '{'). Unknown keys of a tensor are skipped, as
 * in the safetensors library. */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry { /* a tensor as its header has it */
    cfac_tensor tensor;
    uint64_t key_at; /* file offset of its name */
    size_t shape;    /* index into shapes */
    size_t order;    /* place in the header */
} entry;

struct cfac_header {
    char *text;
    uint64_t *shapes;
    cfac_tensor *tensor;
    cfac_pair *pair;
    size_t tensors, pairs, shapes_used, shapes_room, tensors_room, pairs_room;
    entry *entry; /* while parsing */
};

typedef struct parser {
    json j;
    cfac_header *h;
    const char *label;
    cfac_error *error;
    uint64_t data_start, data_size;
} parser;

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[] = {
    [CFAC_BOOL] = {"BOOL", 8}, [CFAC_F4] = {"F4", 4}, [CFAC_F6_E2M3] = {"F6_E2M3", 6},
    [CFAC_F6_E3M2] = {"F6_E3M2", 6}, [CFAC_U8] = {"U8", 8}, [CFAC_I8] = {"I8", 8},
    [CFAC_F8_E5M2] = {"F8_E5M2", 8}, [CFAC_F8_E4M3] = {"F8_E4M3", 8},
    [CFAC_F8_E8M0] = {"F8_E8M0", 8}, [CFAC_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [CFAC_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8}, [CFAC_I16] = {"I16", 16}, [CFAC_U16] = {"U16", 16},
    [CFAC_F16] = {"F16", 16}, [CFAC_BF16] = {"BF16", 16}, [CFAC_I32] = {"I32", 32},
    [CFAC_U32] = {"U32", 32}, [CFAC_F32] = {"F32", 32}, [CFAC_C64] = {"C64", 64},
    [CFAC_F64] = {"F64", 64}, [CFAC_I64] = {"I64", 64}, [CFAC_U64] = {"U64", 64},
};
_Static_assert(sizeof dtypes / sizeof *dtypes == CFAC_DTYPES, "a dtype without a name");

const char *cfac_dtype_name(uint32_t dtype) {
    return dtype < CFAC_DTYPES ? dtypes[dtype].name : NULL;
}

uint32_t cfac_dtype_bits(uint32_t dtype) { return dtype < CFAC_DTYPES ? dtypes[dtype].bits : 0; }

static uint64_t here(const parser *p) { return 8 + (uint64_t)(p->j.at - p->j.start); }

/* Report the JSON parser's error, under `code` if it is a matter of the value's type. */
static int bad(parser *p, cfac_code code, const entry *e, const char *part) {
    cfac_code found = p->j.code == CFAC_JSON ? code : p->j.code;
    return cfac__fail_at(p->error, -EBADMSG, found, here(p), e ? e->tensor.name : NULL,
                         e ? e->tensor.name_length : 0, "%s: %s%s%s", p->label, part,
                         *part ? ": " : "", p->j.what ? p->j.what : "not valid JSON");
}

static int refuse(parser *p, cfac_code code, uint64_t at, const entry *e, const char *what) {
    return cfac__fail_at(p->error, -EBADMSG, code, at, e ? e->tensor.name : NULL,
                         e ? e->tensor.name_length : 0, "%s: %s", p->label, what);
}

static int no_memory(parser *p) {
    return cfac__fail(p->error, -ENOMEM, CFAC_NO_MEMORY, "%s: no memory for its header", p->label);
}

static bool grow(void **array, size_t *room, size_t used, size_t size) {
    if (used < *room) return true;
    size_t more = *room < 16 ? 16 : *room * 2;
    void *bigger = realloc(*array, more * size);
    if (bigger == NULL) return false;
    *array = bigger, *room = more;
    return true;
}

static bool is(const char *text, size_t length, const char *word) {
    return length == strlen(word) && memcmp(text, word, length) == 0;
}

static int parse_shape(parser *p, entry *e) {
    cfac_header *h = p->h;
    e->shape = h->shapes_used;
    if (!json__take(&p->j, '[')) {
        json__fail(&p->j, CFAC_JSON, "expected a list");
        return bad(p, CFAC_SHAPE, e, "shape");
    }
    if (json__take(&p->j, ']')) return 0;
    do {
        uint64_t dim;
        if (!json__integer(&p->j, &dim)) return bad(p, CFAC_SHAPE, e, "shape");
        if (e->tensor.ndim == CFAC_MAX_DIMS)
            return refuse(p, CFAC_DEPTH, here(p), e, "shape of more than 64 dimensions");
        if (!grow((void **)&h->shapes, &h->shapes_room, h->shapes_used, sizeof *h->shapes))
            return no_memory(p);
        h->shapes[h->shapes_used++] = dim;
        e->tensor.ndim++;
    } while (json__take(&p->j, ','));
    if (json__take(&p->j, ']')) return 0;
    json__fail(&p->j, CFAC_JSON, "expected ',' or ']'");
    return bad(p, CFAC_SHAPE, e, "shape");
}

static int parse_offsets(parser *p, entry *e) {
    json *j = &p->j;
    bool fine = (json__take(j, '[') || json__fail(j, CFAC_JSON, "expected a list")) &&
                json__integer(j, &e->tensor.begin) &&
                (json__take(j, ',') || json__fail(j, CFAC_JSON, "expected two integers")) &&
                json__integer(j, &e->tensor.end) &&
                (json__take(j, ']') || json__fail(j, CFAC_JSON, "expected two integers"));
    return fine ? 0 : bad(p, CFAC_OFFSETS, e, "data_offsets");
}

static int parse_dtype(parser *p, entry *e) {
    const char *text;
    size_t length;
    uint64_t at = here(p);
    if (!json__string(&p->j, &text, &length)) return bad(p, CFAC_DTYPE, e, "dtype");
    for (uint32_t i = 0; i < CFAC_DTYPES; i++) {
        if (is(text, length, dtypes[i].name)) {
            e->tensor.dtype = i;
            return 0;
        }
    }
    char shown[64];
    cfac__printable(shown, sizeof shown, text, length);
    return cfac__fail_at(p->error, -EBADMSG, CFAC_DTYPE, at, e->tensor.name, e->tensor.name_length,
                         "%s: unknown dtype '%s'", p->label, shown);
}

enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };

static int parse_tensor(parser *p, entry *e) {
    unsigned seen = 0;
    if (!json__take(&p->j, '{')) {
        json__fail(&p->j, CFAC_JSON, "expected an object");
        return bad(p, CFAC_JSON, e, "");
    }
    bool more = !json__take(&p->j, '}');
    while (more) {
        const char *key;
        size_t length;
        json__space(&p->j);
        uint64_t at = here(p);
        if (!json__string(&p->j, &key, &length)) return bad(p, CFAC_JSON, e, "");
        if (!json__take(&p->j, ':')) {
            json__fail(&p->j, CFAC_JSON, "expected ':'");
            return bad(p, CFAC_JSON, e, "");
        }
        unsigned bit = is(key, length, "dtype")          ? DTYPE
                       : is(key, length, "shape")        ? SHAPE
                       : is(key, length, "data_offsets") ? OFFSETS
                                                         : 0;
        if (seen & bit) return refuse(p, CFAC_DUPLICATE_KEY, at, e, "a key is there twice");
        seen |= bit;
        int r = 0;
        if (bit == DTYPE)
            r = parse_dtype(p, e);
        else if (bit == SHAPE)
            r = parse_shape(p, e);
        else if (bit == OFFSETS)
            r = parse_offsets(p, e);
        else if (!json__skip(&p->j))
            r = bad(p, CFAC_JSON, e, "");
        if (r < 0) return r;
        more = json__take(&p->j, ',');
        if (!more && !json__take(&p->j, '}')) {
            json__fail(&p->j, CFAC_JSON, "expected ',' or '}'");
            return bad(p, CFAC_JSON, e, "");
        }
    }
    const char *missing = !(seen & DTYPE)     ? "its dtype is missing"
                          : !(seen & SHAPE)   ? "its shape is missing"
                          : !(seen & OFFSETS) ? "its data_offsets are missing"
                                              : NULL;
    return missing ? refuse(p, CFAC_MISSING_KEY, e->key_at, e, missing) : 0;
}

/* What a tensor says of itself: offsets in order and in the file, and of the shape's size. */
static int check_tensor(parser *p, const entry *e) {
    const cfac_tensor *t = &e->tensor;
    uint64_t bits = dtypes[t->dtype].bits;
    bool zero = false, overflow = false;
    for (uint32_t i = 0; i < t->ndim; i++) zero |= p->h->shapes[e->shape + i] == 0;
    for (uint32_t i = 0; i < t->ndim && !zero; i++)
        overflow |= __builtin_mul_overflow(bits, p->h->shapes[e->shape + i], &bits);
    if (zero) bits = 0;
    if (t->end < t->begin) return refuse(p, CFAC_OFFSETS, e->key_at, e, "data_offsets end before they begin");
    if (overflow) return refuse(p, CFAC_SIZE, e->key_at, e, "its shape is too large for any file");
    if (bits % 8 != 0)
        return refuse(p, CFAC_PACKED, e->key_at, e, "its packed elements do not fill whole bytes");
    if (bits / 8 != t->end - t->begin)
        return cfac__fail_at(p->error, -EBADMSG, CFAC_SIZE, e->key_at, t->name, t->name_length,
                             "%s: shape and dtype give %" PRIu64 " bytes, data_offsets %" PRIu64,
                             p->label, bits / 8, t->end - t->begin);
    return 0;
}

static int parse_metadata(parser *p) {
    cfac_header *h = p->h;
    if (json__space(&p->j) && *p->j.at == 'n') /* null, as safetensors allows */
        return json__skip(&p->j) ? 0 : bad(p, CFAC_METADATA, NULL, "__metadata__");
    if (!json__take(&p->j, '{')) {
        json__fail(&p->j, CFAC_JSON, "expected an object of strings");
        return bad(p, CFAC_METADATA, NULL, "__metadata__");
    }
    bool more = !json__take(&p->j, '}');
    while (more) {
        const char *key, *value;
        size_t key_length, value_length;
        if (!grow((void **)&h->pair, &h->pairs_room, h->pairs, sizeof *h->pair)) return no_memory(p);
        bool fine = json__string(&p->j, &key, &key_length) &&
                    (json__take(&p->j, ':') || json__fail(&p->j, CFAC_JSON, "expected ':'")) &&
                    json__string(&p->j, &value, &value_length);
        if (!fine) return bad(p, CFAC_METADATA, NULL, "__metadata__");
        h->pair[h->pairs++] = (cfac_pair){key, value, key_length, value_length};
        more = json__take(&p->j, ',');
        if (!more && !json__take(&p->j, '}')) {
            json__fail(&p->j, CFAC_JSON, "expected ',' or '}'");
            return bad(p, CFAC_METADATA, NULL, "__metadata__");
        }
    }
    return 0;
}

static int parse_object(parser *p) {
    cfac_header *h = p->h;
    bool metadata = false;
    json__take(&p->j, '{');
    bool more = !json__take(&p->j, '}');
    while (more) {
        entry e = {.order = h->tensors};
        json__space(&p->j);
        e.key_at = here(p);
        size_t length;
        if (!json__string(&p->j, &e.tensor.name, &length)) return bad(p, CFAC_JSON, NULL, "");
        e.tensor.name_length = length;
        if (!json__take(&p->j, ':')) {
            json__fail(&p->j, CFAC_JSON, "expected ':'");
            return bad(p, CFAC_JSON, NULL, "");
        }
        if (is(e.tensor.name, length, "__metadata__")) {
            if (metadata)
                return refuse(p, CFAC_DUPLICATE_KEY, e.key_at, NULL, "__metadata__ is there twice");
            metadata = true;
            int r = parse_metadata(p);
            if (r < 0) return r;
        } else {
            int r = parse_tensor(p, &e);
            if (r == 0) r = check_tensor(p, &e);
            if (r < 0) return r;
            if (!grow((void **)&h->entry, &h->tensors_room, h->tensors, sizeof *h->entry))
                return no_memory(p);
            h->entry[h->tensors++] = e;
        }
        more = json__take(&p->j, ',');
        if (!more && !json__take(&p->j, '}')) {
            json__fail(&p->j, CFAC_JSON, "expected ',' or '}'");
            return bad(p, CFAC_JSON, NULL, "");
        }
    }
    if (json__space(&p->j))
        return refuse(p, CFAC_JSON, here(p), NULL, "the header goes on after its closing '}'");
    return 0;
}

static int in_file_order(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->tensor.begin != y->tensor.begin) return x->tensor.begin < y->tensor.begin ? -1 : 1;
    if (x->tensor.end != y->tensor.end) return x->tensor.end < y->tensor.end ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

/* The tensors, one after the other, fill the file: no overlap, no hole, nothing cut, nothing left. */
static int check_cover(parser *p) {
    const cfac_header *h = p->h;
    uint64_t at = 0;
    for (size_t i = 0; i < h->tensors; i++) {
        const entry *e = &h->entry[i];
        if (e->tensor.begin < at)
            return refuse(p, CFAC_OVERLAP, e->key_at, e, "it overlaps the tensor before it");
        if (e->tensor.begin > at)
            return cfac__fail_at(p->error, -EBADMSG, CFAC_HOLE, e->key_at, e->tensor.name,
                                 e->tensor.name_length,
                                 "%s: %" PRIu64 " bytes before it belong to no tensor", p->label,
                                 e->tensor.begin - at);
        at = e->tensor.end;
        if (at > p->data_size)
            return cfac__fail_at(p->error, -EBADMSG, CFAC_TRUNCATED, e->key_at, e->tensor.name,
                                 e->tensor.name_length,
                                 "%s: the file has %" PRIu64 " bytes of data, it ends at %" PRIu64
                                 " (an unfinished download?)", p->label, p->data_size, at);
    }
    if (at < p->data_size)
        return cfac__fail_at(p->error, -EBADMSG, CFAC_TRAILING, p->data_start + at, NULL, 0,
                             "%s: %" PRIu64 " bytes after the last tensor", p->label,
                             p->data_size - at);
    return 0;
}

static int check_names(parser *p) {
    const cfac_header *h = p->h;
    if (h->tensors + h->pairs == 0) return 0;
    size_t most = h->tensors > h->pairs ? h->tensors : h->pairs;
    name_entry *names = malloc(most * sizeof *names);
    if (names == NULL) return no_memory(p);
    int r = 0;
    for (size_t i = 0; i < h->tensors; i++) {
        const cfac_tensor *t = &h->entry[i].tensor;
        names[i] = (name_entry){t->name, (size_t)t->name_length, (uint32_t)i};
    }
    cfac__sort_names(names, h->tensors);
    for (size_t i = 1; i < h->tensors && r == 0; i++) {
        const entry *a = &h->entry[names[i - 1].index], *b = &h->entry[names[i].index];
        if (cfac__name_order(&names[i - 1], &names[i]) == 0)
            r = refuse(p, CFAC_DUPLICATE_KEY, a->key_at > b->key_at ? a->key_at : b->key_at, b,
                       "the tensor is there twice");
    }
    for (size_t i = 0; i < h->pairs && r == 0; i++)
        names[i] = (name_entry){h->pair[i].key, (size_t)h->pair[i].key_length, (uint32_t)i};
    if (r == 0) cfac__sort_names(names, h->pairs);
    for (size_t i = 1; i < h->pairs && r == 0; i++)
        if (cfac__name_order(&names[i - 1], &names[i]) == 0)
            r = refuse(p, CFAC_DUPLICATE_KEY, 8, NULL, "a key of __metadata__ is there twice");
    free(names);
    return r;
}

int cfac__header_length(const unsigned char *bytes, size_t length, uint64_t file_size,
                        const char *label, uint64_t *out, cfac_error *error) {
    static const char lfs[] = "version https://git-lfs";
    if (length >= sizeof lfs - 1 && memcmp(bytes, lfs, sizeof lfs - 1) == 0)
        return cfac__fail_at(error, -EBADMSG, CFAC_GIT_LFS, 0, NULL, 0,
                             "%s: a git-lfs pointer, not the file itself: run git lfs pull", label);
    if (length >= 4 && memcmp(bytes, "PK\3\4", 4) == 0)
        return cfac__fail_at(error, -EBADMSG, CFAC_ZIP, 0, NULL, 0,
                             "%s: a zip archive (torch.save), not safetensors", label);
    if (length < 8 || file_size < 8)
        return cfac__fail_at(error, -EBADMSG, CFAC_TOO_SHORT, 0, NULL, 0,
                             "%s: %" PRIu64 " bytes, too short for a safetensors file", label,
                             file_size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | bytes[i];
    if (n == 0)
        return cfac__fail_at(error, -EBADMSG, CFAC_HEADER_LENGTH, 0, NULL, 0,
                             "%s: header length 0", label);
    if (n > CFAC_HEADER_MAX)
        return cfac__fail_at(error, -EBADMSG, CFAC_HEADER_LIMIT, 0, NULL, 0,
                             "%s: header length %" PRIu64 ", more than the limit of %u", label, n,
                             CFAC_HEADER_MAX);
    if (n > file_size - 8)
        return cfac__fail_at(error, -EBADMSG, CFAC_HEADER_LENGTH, 0, NULL, 0,
                             "%s: header length %" PRIu64 " in a file of %" PRIu64 " bytes", label,
                             n, file_size);
    *out = n;
    return 0;
}

static int finish(parser *p) {
    cfac_header *h = p->h;
    int r = check_names(p);
    if (r == 0) cfac__sort(h->entry, h->tensors, sizeof *h->entry, in_file_order);
    if (r == 0) r = check_cover(p);
    if (r < 0) return r;
    h->tensor = malloc((h->tensors + 1) * sizeof *h->tensor);
    if (h->tensor == NULL) return no_memory(p);
    for (size_t i = 0; i < h->tensors; i++) {
        h->tensor[i] = h->entry[i].tensor;
        h->tensor[i].shape = h->shapes ? h->shapes + h->entry[i].shape : NULL;
        h->tensor[i].begin += p->data_start;
        h->tensor[i].end += p->data_start;
    }
    free(h->entry);
    h->entry = NULL;
    return 0;
}

int cfac_header_parse(const void *bytes, size_t length, uint64_t file_size, const char *label,
                      cfac_header **out, cfac_error *error) {
    const unsigned char *b = bytes;
    uint64_t n;
    *out = NULL;
    int r = cfac__header_length(b, length, file_size, label, &n, error);
    if (r < 0) return r;
    if (n > length - 8)
        return cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "%s: not the whole header given", label);
    if (b[8] != '{')
        return cfac__fail_at(error, -EBADMSG, CFAC_NOT_OBJECT, 8, NULL, 0,
                             "%s: the header does not begin with '{'", label);
    cfac_header *h = calloc(1, sizeof *h);
    parser p = {.h = h, .label = label, .error = error, .data_start = 8 + n,
                .data_size = file_size - 8 - n,
                .j = {.start = b + 8, .at = b + 8, .end = b + 8 + n}};
    if (h == NULL || (h->text = malloc((size_t)n + 1)) == NULL) {
        free(h);
        return no_memory(&p);
    }
    p.j.text = h->text;
    r = parse_object(&p);
    if (r == 0) r = finish(&p);
    if (r < 0) {
        cfac_header_free(h);
        return r;
    }
    *out = h;
    return 0;
}

void cfac_header_free(cfac_header *h) {
    if (h == NULL) return;
    free(h->text), free(h->shapes), free(h->tensor), free(h->pair), free(h->entry);
    free(h);
}

const cfac_tensor *cfac_header_tensors(const cfac_header *h, size_t *count) {
    *count = h->tensors;
    return h->tensor;
}

const cfac_pair *cfac_header_metadata(const cfac_header *h, size_t *count) {
    *count = h->pairs;
    return h->pair;
}
