/* header FILE...: a line of JSON for each: its tensors with their bytes, or the error.
 * The bytes are loaded by a job with small chunks; names and bytes are written in hexadecimal. */
#include "cfac.h"

#include <stdio.h>
#include <stdlib.h>

static void tensor(const cfac_tensor *t, const cfac_result *r) {
    printf("%s{\"name\":\"", r->index ? "," : "");
    for (uint64_t i = 0; i < t->name_length; i++) printf("%02x", (unsigned char)t->name[i]);
    printf("\",\"dtype\":\"%s\",\"shape\":[", cfac_dtype_name(t->dtype));
    for (uint32_t i = 0; i < t->ndim; i++)
        printf("%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
    printf("],\"bytes\":\"");
    for (uint64_t i = 0; i < r->length; i++) printf("%02x", ((const unsigned char *)r->data)[i]);
    printf("\"}");
}

static int show(const char *path, cfac_error *e) {
    cfac_model *m = NULL;
    cfac_plan *p = NULL;
    cfac_job *j = NULL;
    cfac_result result;
    cfac_plan_options small = {.chunk_size = 4096};
    cfac_job_options o = {.size = sizeof o, .flags = CFAC_VIEWS, .ring = 2, .device = -1};
    int r = cfac_model_open(&path, 1, 0, &m, e);
    if (r == 0) r = cfac_plan_make(m, NULL, 0, &small, &p, e);
    if (r == 0) r = cfac_job_open(p, &o, &j, e);
    if (r == 0) r = cfac_job_start(j, e);
    if (r == 0) printf("{\"tensors\":[");
    if (r == 0) {
        size_t n;
        const cfac_tensor *t = cfac_model_tensors(m, &n);
        const cfac_item *items = cfac_plan_items(p, &n);
        while ((r = cfac_job_next(j, 10000, &result, e)) == 1) {
            tensor(&t[items[result.index].tensor], &result);
            cfac_buffer_release(result.buffer);
        }
        if (r == 0) printf("]}\n");
    }
    cfac_job_close(j);
    cfac_plan_free(p);
    cfac_model_free(m);
    return r;
}

int main(int count, char **paths) {
    for (int i = 1; i < count; i++) {
        cfac_error e = {0};
        if (show(paths[i], &e) < 0)
            printf("{\"code\":\"%s\",\"error\":%d,\"tensor\":\"%s\"}\n", cfac_code_name(e.code),
                   e.error, e.tensor);
    }
    return 0;
}
