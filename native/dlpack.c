/* A buffer as a DLPack tensor (dmlc.github.io/dlpack, version 0): bytes whose last user, whatever
 * library that is, gives the reference back without any code of Python's. */
#include "internal.h"

#include <stdlib.h>

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
    int64_t length; /* ours */
} managed;

enum { CPU = 1, UNSIGNED = 1 };

static void drop(managed *m) {
    cfac_buffer_release(m->context);
    free(m);
}

void *cfac_buffer_dlpack(cfac_buffer *buffer, void *data, uint64_t length) {
    managed *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    m->data = data, m->device_type = CPU, m->ndim = 1;
    m->code = UNSIGNED, m->bits = 8, m->lanes = 1;
    m->length = (int64_t)length, m->shape = &m->length;
    m->context = buffer, m->deleter = drop;
    return m;
}
