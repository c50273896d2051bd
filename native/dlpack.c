/* A buffer as a DLPack tensor (dmlc.github.io/dlpack, version 0), whose last user, whatever library
 * that is, gives the reference back without any code of Python's. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct managed { /* DLManagedTensor */
    void *data;
    int32_t device_type, device;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
    void *context;
    void (*deleter)(struct managed *self);
    int64_t sizes[]; /* ours */
} managed;

enum { CPU = 1 };

static void drop(managed *m) {
    cfac_buffer_release(m->context);
    free(m);
}

void *cfac_buffer_dlpack(cfac_buffer *buffer, void *data, uint32_t type, uint32_t ndim,
                         const int64_t *shape) {
    managed *m = calloc(1, sizeof *m + ndim * sizeof m->sizes[0]);
    if (m == NULL) return NULL;
    m->data = data, m->device_type = CPU, m->ndim = (int32_t)ndim;
    m->code = (uint8_t)(type >> 8), m->bits = (uint8_t)type, m->lanes = 1;
    if (ndim > 0) memcpy(m->sizes, shape, ndim * sizeof m->sizes[0]);
    m->shape = m->sizes;
    m->context = buffer, m->deleter = drop;
    return m;
}
