/* Linux AIO without libaio: io_setup(2), io_submit(2), io_getevents(2). */
#define _GNU_SOURCE
#include "engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct aio {
    engine base;
    aio_context_t context;
    int event;
} aio;

static int submit(engine *e, request *r, uint64_t most) {
    aio *a = (aio *)e;
    uint64_t left = r->length - r->done;
    struct iocb *list[1] = {&r->iocb};
    memset(&r->iocb, 0, sizeof r->iocb);
    r->iocb.aio_data = (uint64_t)(uintptr_t)r;
    r->iocb.aio_lio_opcode = IOCB_CMD_PREAD;
    r->iocb.aio_fildes = (uint32_t)r->fd;
    r->iocb.aio_buf = (uint64_t)(uintptr_t)(r->into + r->done);
    r->iocb.aio_nbytes = left < most ? left : most;
    r->iocb.aio_offset = (int64_t)(r->offset + r->done);
    r->iocb.aio_flags = IOCB_FLAG_RESFD;
    r->iocb.aio_resfd = (uint32_t)a->event;
    for (;;) {
        long n = syscall(SYS_io_submit, a->context, 1, list);
        if (n == 1) return 0;
        if (n < 0 && errno == EINTR) continue;
        return n < 0 ? -errno : -EAGAIN;
    }
}

static request *reap(engine *e) {
    aio *a = (aio *)e;
    struct io_event event;
    struct timespec none = {0, 0};
    for (;;) {
        long n = syscall(SYS_io_getevents, a->context, 0, 1, &event, &none);
        if (n < 0 && errno == EINTR) continue;
        if (n != 1) return NULL;
        request *r = (request *)(uintptr_t)event.data;
        r->result = event.res;
        return r;
    }
}

static void shut(engine *e) {
    aio *a = (aio *)e;
    syscall(SYS_io_destroy, a->context);
    free(a);
}

int cfac__aio_open(uint32_t depth, int event, engine **out) {
    aio *a = calloc(1, sizeof *a);
    if (a == NULL) return -ENOMEM;
    /* EAGAIN: fs.aio-max-nr is used up; a smaller depth may still fit */
    long r;
    while ((r = syscall(SYS_io_setup, depth, &a->context)) < 0 && errno == EAGAIN && depth > 1)
        depth /= 2;
    if (r < 0) {
        int err = errno;
        free(a);
        return -err;
    }
    a->event = event;
    a->base = (engine){CFAC_LIBAIO, depth, submit, reap, shut};
    *out = &a->base;
    return 0;
}
