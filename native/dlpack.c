/* Tensors of other libraries, by DLPack (dmlc.github.io/dlpack): a buffer as one of them, whose last
 * user, whatever library that is, gives the reference back without any code of Python's; and theirs
 * as destinations. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct dl_tensor { /* DLTensor */
    void *data;
    int32_t device_type, device;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct managed { /* DLManagedTensor */
    dl_tensor tensor;
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
    dl_tensor *t = &m->tensor;
    t->data = data, t->device_type = CPU, t->ndim = (int32_t)ndim;
    t->code = (uint8_t)(type >> 8), t->bits = (uint8_t)type, t->lanes = 1;
    if (ndim > 0) memcpy(m->sizes, shape, ndim * sizeof m->sizes[0]);
    t->shape = m->sizes;
    m->context = buffer, m->deleter = drop;
    return m;
}

/* DLDataTypeCode * 256 + bits, by cfac_dtype; 0: packed, which libraries count each in their way */
static const uint16_t types[CFAC_DTYPES] = {
    [CFAC_BOOL] = 6 << 8 | 8, [CFAC_U8] = 1 << 8 | 8, [CFAC_I8] = 8, [CFAC_F8_E5M2] = 12 << 8 | 8,
    [CFAC_F8_E4M3] = 10 << 8 | 8, [CFAC_F8_E8M0] = 14 << 8 | 8, [CFAC_F8_E4M3FNUZ] = 11 << 8 | 8,
    [CFAC_F8_E5M2FNUZ] = 13 << 8 | 8, [CFAC_I16] = 16, [CFAC_U16] = 1 << 8 | 16,
    [CFAC_F16] = 2 << 8 | 16, [CFAC_BF16] = 4 << 8 | 16, [CFAC_I32] = 32, [CFAC_U32] = 1 << 8 | 32,
    [CFAC_F32] = 2 << 8 | 32, [CFAC_C64] = 5 << 8 | 64, [CFAC_F64] = 2 << 8 | 64, [CFAC_I64] = 64,
    [CFAC_U64] = 1 << 8 | 64,
};

/* Whether a tensor's bytes can be read straight into another one. */
static bool fits(const cfac_tensor *t, const dl_tensor *d) {
    if (d->device_type != CPU || d->lanes != 1 || types[t->dtype] == 0 ||
        types[t->dtype] != (d->code << 8 | d->bits) || d->ndim < 0 || (uint32_t)d->ndim != t->ndim)
        return false;
    bool packed = true; /* without gaps, the last dimension first */
    uint64_t step = 1;
    for (uint32_t i = t->ndim; i-- > 0;) {
        if (d->shape[i] < 0 || (uint64_t)d->shape[i] != t->shape[i]) return false;
        if (t->shape[i] != 1 && d->strides != NULL && d->strides[i] != (int64_t)step) packed = false;
        step *= t->shape[i];
    }
    return t->end == t->begin || (packed && d->data != NULL);
}

typedef struct span {
    uint64_t begin, end;
} span;

static int by_begin(const void *a, const void *b) {
    const span *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

int64_t cfac_model_targets(const cfac_model *m, const uint32_t *numbers, void *const *objects,
                           size_t count, cfac_dl_tensor_of look, cfac_target *out) {
    span *spans = malloc((count + 1) * sizeof *spans);
    if (spans == NULL) return -ENOMEM;
    size_t used = 0;
    int64_t fitting = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t number = numbers ? numbers[i] : (uint32_t)i;
        dl_tensor d = {0};
        if (number >= m->tensors || look(objects[i], &d) != 0 || !fits(&m->tensor[number], &d)) break;
        const cfac_tensor *t = &m->tensor[number];
        char *data = (char *)d.data + d.byte_offset;
        out[i] = (cfac_target){(uint32_t)i, 0, data, t->end - t->begin};
        if (t->end > t->begin)
            spans[used++] = (span){(uintptr_t)data, (uintptr_t)data + (t->end - t->begin)};
        fitting++;
    }
    cfac__sort(spans, used, sizeof *spans, by_begin);
    for (size_t i = 1; i < used; i++)
        if (spans[i].begin < spans[i - 1].end) fitting = -EEXIST;
    free(spans);
    return fitting;
}
