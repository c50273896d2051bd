#define _GNU_SOURCE
#include "loading.h"

#include <time.h>

const spec tensors[TENSORS] = {
    {"scalar", "F32", "[]", 4},           {"small", "BF16", "[64]", 128},
    {"large", "U8", "[300000]", 300000},  {"none", "F32", "[0]", 0},
    {"odd", "U8", "[3]", 3},              {"misaligned", "F32", "[5000]", 20000},
    {"mid", "I8", "[40961]", 40961},      {"end", "F64", "[100]", 800},
};
loading start_plan(const char *const *paths, size_t files, cfac_plan_options p,
                          cfac_job_options o) {
    loading l;
    o.size = sizeof o;
    if (o.device == 0) o.device = -1;
    FINE(cfac_model_open(paths, files, 0, &l.model, &error));
    FINE(cfac_plan_make(l.model, NULL, 0, &p, &l.plan, &error));
    FINE(cfac_job_open(l.plan, &o, &l.job, &error));
    return l;
}

loading open_job(const char *path, uint64_t chunk_size, cfac_job_options o) {
    return start_plan(&path, 1, (cfac_plan_options){.chunk_size = chunk_size}, o);
}

void end(loading l) {
    cfac_job_close(l.job);
    cfac_plan_free(l.plan);
    cfac_model_free(l.model);
}

const cfac_tensor *tensor_at(loading l, uint32_t item) {
    size_t n;
    return &cfac_model_tensors(l.model, &n)[cfac_plan_items(l.plan, &n)[item].tensor];
}

void check_item(loading l, const cfac_result *r) {
    const cfac_tensor *t = tensor_at(l, r->index);
    EQUAL(r->length, t->end - t->begin);
    check_content(t->name, r->data, 0, r->length);
    uint32_t align = cfac_dtype_bits(t->dtype) / 8;
    if (r->length > 0 && align > 0 && !(r->flags & CFAC_PLACED)) EQUAL((uintptr_t)r->data % align, 0);
}

void take_all(loading l, bool hold) {
    static cfac_result held[512];
    cfac_result r;
    uint32_t n = 0;
    int got;
    while ((got = cfac_job_next(l.job, 20000, &r, NULL)) == 1) {
        EQUAL(r.index, n);
        CHECK(n < 512);
        check_item(l, &r);
        held[n++] = r;
        if (!hold) cfac_buffer_release(r.buffer);
    }
    EQUAL(got, 0);
    size_t items;
    cfac_plan_items(l.plan, &items);
    EQUAL(n, items);
    for (uint32_t i = 0; hold && i < n; i++) {
        check_item(l, &held[i]); /* nothing was reused under it */
        cfac_buffer_release(held[i].buffer);
    }
}

cfac_counters counters(loading l) {
    cfac_counters c;
    EQUAL(cfac_job_counters(l.job, &c, sizeof c), 0);
    return c;
}

void write_many(const char *path, unsigned count) {
    static char names[512][16];
    static spec many[512];
    for (unsigned i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "t%u", i);
        many[i] = (spec){names[i], "U8", "[4000]", 4000};
    }
    write_model(path, many, count, 0);
}

void nap(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

cfac_error start_and_fail(loading l) {
    cfac_error e = {0};
    cfac_result r;
    int got = cfac_job_start(l.job, &e);
    if (got == 0)
        while ((got = cfac_job_next(l.job, 20000, &r, &e)) == 1) {
            check_item(l, &r);
            cfac_buffer_release(r.buffer);
        }
    EQUAL(got, e.error);
    CHECK(got < 0);
    return e;
}
