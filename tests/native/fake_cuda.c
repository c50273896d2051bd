/* A test double of libcudart: "device memory" is the process's own. It checks what it is given, and
 * copies late, at the stream's synchronisation, so that a buffer reused too early shows. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct copy {
    void *to;
    const void *from;
    size_t size;
    struct copy *next;
} copy;

typedef struct stream {
    copy *first, **last;
} stream;

static _Thread_local int device = -1;

int cudaSetDevice(int d);
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *s);
int cudaStreamCreateWithFlags(void **s, unsigned flags);
int cudaStreamSynchronize(void *s);
int cudaStreamDestroy(void *s);
int cudaHostRegister(void *p, size_t size, unsigned flags);
int cudaHostUnregister(void *p);
const char *cudaGetErrorString(int e);

int cudaSetDevice(int d) {
    if (d > 1) return 101; /* cudaErrorInvalidDevice */
    device = d;
    return 0;
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *s) {
    if (device < 0 || s == NULL || kind != 4) return 1;
    const char *fail = getenv("FAKE_CUDA_FAIL");
    if (fail != NULL && *fail) return 700;
    stream *t = s;
    copy *c = malloc(sizeof *c);
    if (c == NULL) return 2;
    *c = (copy){to, from, size, NULL};
    *t->last = c;
    t->last = &c->next;
    return 0;
}

int cudaStreamCreateWithFlags(void **s, unsigned flags) {
    stream *t = malloc(sizeof *t);
    if (device < 0 || flags != 1 || t == NULL) return free(t), 1;
    t->first = NULL;
    t->last = &t->first;
    *s = t;
    return 0;
}

int cudaStreamSynchronize(void *s) {
    stream *t = s;
    while (t->first != NULL) {
        copy *c = t->first;
        memcpy(c->to, c->from, c->size);
        t->first = c->next;
        free(c);
    }
    t->last = &t->first;
    return 0;
}

int cudaStreamDestroy(void *s) {
    int r = ((stream *)s)->first != NULL;
    free(s);
    return r;
}

int cudaHostRegister(void *p, size_t size, unsigned flags) {
    return (size_t)p % 4096 != 0 || size == 0 || flags != 0;
}

int cudaHostUnregister(void *p) { return p == NULL; }

const char *cudaGetErrorString(int e) { return e == 101 ? "invalid device ordinal" : "made up"; }
