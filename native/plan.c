/* Files -> chunks. A file is cut at a grid of equal steps that begins at the page of its first wanted
 * byte's file's data; a chunk is what is wanted of one step. Chunks never span files. */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CHUNKS (1u << 22)
#define MAX_RANKS (1u << 16)

typedef struct order_key {
    uint64_t begin, end;
    uint32_t file, tensor, place;
} order_key;

static int compare(const void *a, const void *b) {
    const order_key *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return x->tensor == y->tensor ? 0 : x->tensor < y->tensor ? -1 : 1;
}

static uint64_t item_offset(const cfac_plan *p, const cfac_item *i) {
    return p->model->tensor[i->tensor].begin + i->begin;
}

static int take_items(cfac_plan *p, const cfac_item *items, size_t count, cfac_error *error) {
    const cfac_model *m = p->model;
    if (items == NULL) count = m->tensors;
    p->item = calloc(count + 1, sizeof *p->item);
    order_key *keys = calloc(count + 1, sizeof *keys);
    bool *seen = calloc(m->tensors + 1, sizeof *seen);
    int r = 0;
    if (p->item == NULL || keys == NULL || seen == NULL)
        r = cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "no memory for a plan");
    for (size_t i = 0; i < count && r == 0; i++) {
        uint32_t tensor = items ? items[i].tensor : (uint32_t)i;
        if (tensor >= m->tensors) {
            r = cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "no tensor %" PRIu32, tensor);
            break;
        }
        const cfac_tensor *t = &m->tensor[tensor];
        uint64_t size = t->end - t->begin;
        uint64_t begin = items ? items[i].begin : 0, length = items ? items[i].length : size;
        if (begin > size || length > size - begin)
            r = cfac__fail_at(error, -EINVAL, CFAC_ARGUMENT, CFAC_NO_OFFSET, t->name,
                              (size_t)t->name_length, "a range outside its tensor");
        else if (seen[tensor])
            r = cfac__fail_at(error, -EINVAL, CFAC_ARGUMENT, CFAC_NO_OFFSET, t->name,
                              (size_t)t->name_length, "a tensor is asked for twice");
        else
            keys[i] = (order_key){t->begin + begin, t->begin + begin + length, t->file, tensor,
                                  (uint32_t)i};
        seen[tensor] = true;
    }
    if (r == 0) {
        cfac__sort(keys, count, sizeof *keys, compare);
        for (size_t i = 0; i < count; i++) {
            p->item[i].tensor = keys[i].tensor;
            p->item[i].begin = keys[i].begin - m->tensor[keys[i].tensor].begin;
            p->item[i].length = keys[i].end - keys[i].begin;
        }
        p->items = count;
    }
    free(keys), free(seen);
    return r;
}

/* Walk the items and cut them at the grid; with NULL arrays only count. */
static int cut(cfac_plan *p, cfac_chunk *chunks, cfac_piece *pieces, cfac_error *error) {
    const cfac_model *m = p->model;
    uint64_t step = p->options.chunk_size, grid = 0;
    uint32_t file = UINT32_MAX;
    size_t nc = 0, np = 0;
    for (size_t i = 0; i < p->items; i++) {
        cfac_item *item = &p->item[i];
        const cfac_tensor *t = &m->tensor[item->tensor];
        uint64_t at = item_offset(p, item), end = at + item->length;
        uint64_t base = ALIGN_DOWN(m->file[t->file].data_start, PAGE);
        item->first_chunk = nc > 0 ? (uint32_t)nc - 1 : 0;
        item->first_piece = (uint32_t)np;
        item->chunks = 0;
        if (at < end && (end - at) / step + nc + np + 2 > MAX_CHUNKS)
            return cfac__fail(error, -EFBIG, CFAC_LAYOUT,
                              "more than %u chunks: take a larger chunk_size", MAX_CHUNKS);
        while (at < end) {
            uint64_t cell = (at - base) / step;
            uint64_t stop = base + (cell + 1) * step < end ? base + (cell + 1) * step : end;
            if (t->file != file || cell != grid || nc == 0) {
                if (chunks)
                    chunks[nc] = (cfac_chunk){.origin = ALIGN_DOWN(at, PAGE), .offset = at,
                                              .file = t->file, .first_piece = (uint32_t)np};
                file = t->file, grid = cell, nc++;
            }
            if (chunks) {
                cfac_chunk *c = &chunks[nc - 1];
                c->pieces++;
                c->length = stop - c->offset;
                pieces[np] = (cfac_piece){(uint32_t)i, (uint32_t)nc - 1, at,
                                          at - item_offset(p, item), stop - at};
                if (item->chunks == 0) item->first_chunk = (uint32_t)nc - 1;
            }
            item->chunks++;
            np++;
            at = stop;
        }
    }
    p->chunks = nc, p->pieces = np;
    return 0;
}

/* Each rank's part of a chunk: equal segments of whole pages, the last ones shorter or empty. */
static void share(cfac_plan *p) {
    uint32_t ranks = p->options.ranks;
    for (size_t i = 0; i < p->chunks; i++) {
        cfac_chunk *c = &p->chunk[i];
        uint64_t end = c->offset + c->length;
        c->read_offset = c->offset, c->read_length = c->length;
        if (ranks < 2) continue;
        uint64_t whole = end - c->origin;
        c->segment = ALIGN_UP((whole + ranks - 1) / ranks, PAGE);
        uint64_t from = c->origin + c->segment * p->options.rank, to = from + c->segment;
        if (from < c->offset) from = c->offset;
        if (to > end) to = end;
        if (to < from) to = from = end;
        c->read_offset = from, c->read_length = to - from;
    }
}

int cfac_plan_make(const cfac_model *model, const cfac_item *items, size_t count,
                   const cfac_plan_options *options, cfac_plan **out, cfac_error *error) {
    *out = NULL;
    cfac_plan *p = calloc(1, sizeof *p);
    if (p == NULL) return cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "no memory for a plan");
    atomic_init(&p->references, 1);
    if (options) p->options = *options;
    if (p->options.chunk_size == 0) p->options.chunk_size = CFAC_DEFAULT_CHUNK;
    if (p->options.ranks == 0) p->options.ranks = 1;
    if (p->options.chunk_size % PAGE != 0 || p->options.chunk_size > (uint64_t)1 << 40 ||
        p->options.rank >= p->options.ranks || p->options.ranks > MAX_RANKS) {
        free(p);
        return cfac__fail(error, -EINVAL, CFAC_ARGUMENT,
                          "chunk_size must be a multiple of 4096, rank less than ranks");
    }
    p->model = (cfac_model *)(uintptr_t)model; /* counted below; otherwise only read */
    cfac__model_retain(p->model);
    p->buffer_size = p->options.chunk_size;
    if (p->options.ranks > 1) p->buffer_size += (uint64_t)p->options.ranks * PAGE;
    int r = take_items(p, items, count, error);
    if (r == 0) r = cut(p, NULL, NULL, error);
    if (r == 0) {
        p->chunk = calloc(p->chunks + 1, sizeof *p->chunk);
        p->piece = calloc(p->pieces + 1, sizeof *p->piece);
        if (p->chunk == NULL || p->piece == NULL)
            r = cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "no memory for a plan");
        else
            r = cut(p, p->chunk, p->piece, error);
    }
    if (r < 0) {
        cfac_plan_free(p);
        return r;
    }
    share(p);
    *out = p;
    return 0;
}

void cfac_plan_free(cfac_plan *p) {
    if (p == NULL || atomic_fetch_sub(&p->references, 1) > 1) return;
    cfac_model_free(p->model);
    free(p->item), free(p->chunk), free(p->piece);
    free(p);
}

const cfac_item *cfac_plan_items(const cfac_plan *p, size_t *count) {
    *count = p->items;
    return p->item;
}

const cfac_chunk *cfac_plan_chunks(const cfac_plan *p, size_t *count) {
    *count = p->chunks;
    return p->chunk;
}

const cfac_piece *cfac_plan_pieces(const cfac_plan *p, size_t *count) {
    *count = p->pieces;
    return p->piece;
}

uint64_t cfac_plan_buffer_size(const cfac_plan *p) { return p->buffer_size; }

static int crooked(cfac_error *error, const char *what, size_t index) {
    return cfac__fail(error, -EINVAL, CFAC_LAYOUT, "layout: %s %zu", what, index);
}

int cfac_layout_check(const cfac_item *items, size_t item_count, const cfac_chunk *chunks,
                      size_t chunk_count, const cfac_piece *pieces, size_t piece_count,
                      cfac_error *error) {
    size_t item = 0, chunk = 0, in_item = 0, in_chunk = 0;
    uint64_t covered = 0; /* of `item` */
    for (size_t i = 0; i < piece_count; i++) {
        const cfac_piece *x = &pieces[i];
        if (x->item >= item_count || x->chunk >= chunk_count)
            return crooked(error, "no such item or chunk in piece", i);
        if (x->item < item || x->chunk < chunk || x->length == 0)
            return crooked(error, "not ascending at piece", i);
        for (; item < x->item; item++, covered = 0, in_item = 0)
            if (covered != items[item].length || in_item != items[item].chunks)
                return crooked(error, "pieces do not make up item", item);
        for (; chunk < x->chunk; chunk++, in_chunk = 0)
            if (in_chunk == 0 || in_chunk != chunks[chunk].pieces)
                return crooked(error, "pieces do not make up chunk", chunk);
        if (in_chunk == 0 && chunks[chunk].first_piece != i)
            return crooked(error, "first_piece is wrong in chunk", chunk);
        if (in_item == 0 && (items[item].first_piece != i || items[item].first_chunk != x->chunk))
            return crooked(error, "first_piece or first_chunk is wrong in item", item);
        if (x->item_offset != covered || x->length > items[item].length - covered)
            return crooked(error, "a gap or an overlap in the item of piece", i);
        const cfac_chunk *c = &chunks[chunk];
        if (x->offset < c->offset || x->length > c->length ||
            x->offset - c->offset > c->length - x->length)
            return crooked(error, "outside its chunk: piece", i);
        if (in_chunk > 0 && x->offset < pieces[i - 1].offset + pieces[i - 1].length)
            return crooked(error, "overlaps the one before: piece", i);
        covered += x->length, in_item++, in_chunk++;
    }
    for (; item < item_count; item++, covered = 0, in_item = 0)
        if (covered != items[item].length || in_item != items[item].chunks)
            return crooked(error, "pieces do not make up item", item);
    for (; chunk < chunk_count; chunk++, in_chunk = 0)
        if (in_chunk == 0 || in_chunk != chunks[chunk].pieces)
            return crooked(error, "pieces do not make up chunk", chunk);
    return 0;
}
