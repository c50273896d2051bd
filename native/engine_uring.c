/* io_uring without liburing: io_uring_setup(2), io_uring_enter(2), io_uring_register(2). */
#define _GNU_SOURCE
#include "engine.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct uring {
    engine base;
    int fd;
    void *sq, *cq;
    size_t sq_size, cq_size, sqe_size;
    struct io_uring_sqe *sqe;
    struct io_uring_cqe *cqe;
    uint32_t *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
} uring;

static int submit(engine *e, request *r, uint64_t most) {
    uring *u = (uring *)e;
    uint32_t tail = *u->sq_tail, slot = tail & *u->sq_mask;
    uint64_t left = r->length - r->done;
    r->vec = (struct iovec){r->into + r->done, (size_t)(left < most ? left : most)};
    struct io_uring_sqe *s = &u->sqe[slot];
    memset(s, 0, sizeof *s);
    s->opcode = IORING_OP_READV; /* in every kernel that has io_uring */
    s->fd = r->fd;
    s->off = r->offset + r->done;
    s->addr = (uint64_t)(uintptr_t)&r->vec;
    s->len = 1;
    s->user_data = (uint64_t)(uintptr_t)r;
    u->sq_array[slot] = slot;
    __atomic_store_n(u->sq_tail, tail + 1, __ATOMIC_RELEASE);
    for (;;) {
        long n = syscall(SYS_io_uring_enter, u->fd, 1, 0, 0, NULL, 0);
        if (n == 1) return 0;
        if (n < 0 && errno == EINTR) continue;
        int err = n < 0 ? errno : EAGAIN;
        __atomic_store_n(u->sq_tail, tail, __ATOMIC_RELEASE); /* not taken: withdraw it */
        return -err;
    }
}

static request *reap(engine *e) {
    uring *u = (uring *)e;
    uint32_t head = *u->cq_head;
    if (head == __atomic_load_n(u->cq_tail, __ATOMIC_ACQUIRE)) return NULL;
    const struct io_uring_cqe *c = &u->cqe[head & *u->cq_mask];
    request *r = (request *)(uintptr_t)c->user_data;
    r->result = c->res;
    __atomic_store_n(u->cq_head, head + 1, __ATOMIC_RELEASE);
    return r;
}

static void unmap(void *p, size_t size) {
    if (p != NULL && p != MAP_FAILED) munmap(p, size);
}

static void shut(engine *e) {
    uring *u = (uring *)e;
    unmap(u->sqe, u->sqe_size);
    if (u->cq != u->sq) unmap(u->cq, u->cq_size);
    unmap(u->sq, u->sq_size);
    if (u->fd >= 0) close(u->fd);
    free(u);
}

static void *map(const uring *u, size_t size, uint64_t what) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, u->fd, (off_t)what);
}

static uint32_t *field(void *ring, uint32_t offset) {
    return (uint32_t *)(void *)((char *)ring + offset);
}

int cfac__uring_open(uint32_t depth, int event, engine **out) {
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    p.flags = IORING_SETUP_CLAMP;
    uring *u = calloc(1, sizeof *u);
    if (u == NULL) return -ENOMEM;
    u->fd = (int)syscall(SYS_io_uring_setup, depth, &p); /* close-on-exec as it is */
    if (u->fd < 0) {
        int err = errno;
        free(u);
        return -err;
    }
    u->sq_size = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
    u->cq_size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    u->sqe_size = p.sq_entries * sizeof(struct io_uring_sqe);
    bool one = (p.features & IORING_FEAT_SINGLE_MMAP) != 0;
    if (one && u->cq_size > u->sq_size) u->sq_size = u->cq_size;
    u->sq = map(u, u->sq_size, IORING_OFF_SQ_RING);
    u->cq = one ? u->sq : map(u, u->cq_size, IORING_OFF_CQ_RING);
    u->sqe = map(u, u->sqe_size, IORING_OFF_SQES);
    int err = 0;
    if (u->sq == MAP_FAILED || u->cq == MAP_FAILED || (void *)u->sqe == MAP_FAILED)
        err = errno;
    else if (syscall(SYS_io_uring_register, u->fd, IORING_REGISTER_EVENTFD, &event, 1) < 0)
        err = errno;
    if (err != 0) {
        shut(&u->base);
        return -err;
    }
    u->sq_tail = field(u->sq, p.sq_off.tail), u->sq_mask = field(u->sq, p.sq_off.ring_mask);
    u->sq_array = field(u->sq, p.sq_off.array);
    u->cq_head = field(u->cq, p.cq_off.head), u->cq_tail = field(u->cq, p.cq_off.tail);
    u->cq_mask = field(u->cq, p.cq_off.ring_mask);
    u->cqe = (struct io_uring_cqe *)(void *)((char *)u->cq + p.cq_off.cqes);
    u->base = (engine){CFAC_IO_URING, depth < p.sq_entries ? depth : p.sq_entries, submit, reap, shut};
    *out = &u->base;
    return 0;
}
