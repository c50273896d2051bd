/* The fuzz target: a header and, if it parses, a plan of it. For libFuzzer build with
 * clang -fsanitize=fuzzer,address,undefined fuzz_target.c ../../native/X.c; fuzz_main.c is a driver
 * for compilers without it. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

/* A model of one file, made up around a header. The plan only looks at these. */
static void plan(cfac_header *header, uint64_t data_start, const uint8_t *data, size_t size) {
    cfac_model *m = calloc(1, sizeof *m);
    require(m != NULL);
    size_t n;
    const cfac_tensor *t = cfac_header_tensors(header, &n);
    atomic_init(&m->references, 1);
    m->files = 1, m->tensors = n;
    m->file = calloc(1, sizeof *m->file);
    m->tensor = calloc(n + 1, sizeof *m->tensor);
    require(m->file != NULL && m->tensor != NULL);
    m->file->header = header;
    m->file->data_start = data_start;
    memcpy(m->tensor, t, n * sizeof *t);
    cfac_item *items = calloc(n + 1, sizeof *items);
    require(items != NULL);
    size_t wanted = 0;
    for (size_t i = 0; i < n; i++) { /* the input's bytes choose ranges */
        uint64_t length = t[i].end - t[i].begin, a = data[i % size], b = data[(i * 7 + 3) % size];
        if (a % 4 == 0) continue;
        items[wanted].tensor = (uint32_t)(n - 1 - i);
        length = t[n - 1 - i].end - t[n - 1 - i].begin;
        items[wanted].begin = length * a / 300;
        items[wanted].length = (length - items[wanted].begin) * b / 255;
        if (a % 16 == 1) items[wanted].length = UINT64_MAX - b;
        wanted++;
    }
    for (uint32_t ranks = 1; ranks < 4; ranks++) {
        cfac_plan_options o = {.chunk_size = (uint64_t)4096 << data[0] % 12, .ranks = ranks,
                               .rank = ranks - 1};
        cfac_plan *p;
        cfac_error e;
        if (cfac_plan_make(m, ranks == 1 ? NULL : items, wanted, &o, &p, &e) < 0) continue;
        size_t ni, nc, np;
        const cfac_item *i = cfac_plan_items(p, &ni);
        const cfac_chunk *c = cfac_plan_chunks(p, &nc);
        const cfac_piece *x = cfac_plan_pieces(p, &np);
        require(cfac_layout_check(i, ni, c, nc, x, np, &e) == 0);
        for (size_t k = 0; k < nc; k++)
            require(c[k].offset + c[k].length - c[k].origin <= cfac_plan_buffer_size(p) &&
                    c[k].read_offset >= c[k].offset &&
                    c[k].read_offset + c[k].read_length <= c[k].offset + c[k].length);
        cfac_plan_free(p);
    }
    free(items);
    cfac_model_free(m); /* and the header with it */
}

static int parse(const uint8_t *data, size_t size, uint64_t file_size, cfac_error *e) {
    cfac_header *h;
    int r = cfac_header_parse(data, size, file_size, "fuzz", &h, e);
    if (r < 0) {
        require(h == NULL && e->code > 0 && e->code < CFAC_CODES && e->message[0] != 0);
        return r;
    }
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | data[i];
    size_t count;
    uint64_t at = 8 + n;
    const cfac_tensor *t = cfac_header_tensors(h, &count);
    for (size_t i = 0; i < count; at = t[i++].end) require(t[i].begin == at && t[i].end >= at);
    require(at == file_size);
    plan(h, 8 + n, data, size);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 10) return 0;
    cfac_error e;
    uint8_t *exact = malloc(size); /* so that a read past the end is found */
    require(exact != NULL);
    memcpy(exact, data, size);
    /* As it is; then, if only the file's size is wrong, with the right one. */
    if (parse(exact, size, size, &e) < 0 && parse(exact, size, UINT64_MAX / 2, &e) < 0 &&
        e.code == CFAC_TRAILING)
        require(parse(exact, size, e.offset, &e) == 0);
    free(exact);
    return 0;
}
