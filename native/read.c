/* Synchronous reads of a chunk: into its items' memory, piece by piece, or into one range. */
#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define VECTOR 256

uint64_t cfac__fault_limit(cfac_job *job, uint64_t most, bool direct) {
#ifdef CFAC_TEST
    uint64_t cap = job->faults.short_read;
    if (direct) cap = ALIGN_UP(cap, PAGE);
    if (cap > 0 && cap < most) return cap;
#else
    (void)job, (void)direct;
#endif
    return most;
}

int cfac__fault_result(cfac_job *job, uint32_t chunk, bool direct) {
#ifdef CFAC_TEST
    const cfac_faults *f = &job->faults;
    if (f->delay_chunk == chunk + 1) {
        struct timespec t = {f->delay_ms / 1000, (long)(f->delay_ms % 1000) * 1000000};
        nanosleep(&t, NULL);
    }
    if (f->eio_chunk == chunk + 1) return -EIO;
    if (direct && f->direct_einval) return -EINVAL;
    unsigned left = atomic_load(&job->again_left);
    while (left > 0 && !atomic_compare_exchange_weak(&job->again_left, &left, left - 1)) {}
    if (left > 0) return left % 2 ? -EAGAIN : -EINTR;
#else
    (void)job, (void)chunk, (void)direct;
#endif
    return 0;
}

int cfac__read_failed(cfac_job *job, uint32_t chunk, int err, uint64_t offset, cfac_error *error) {
    const cfac_plan *p = job->plan;
    const cfac_chunk *c = &p->chunk[chunk];
    const char *path = p->model->file[c->file].path;
    char shown[300];
    cfac__printable(shown, sizeof shown, path, strlen(path));
    const cfac_tensor *t = &p->model->tensor[p->item[p->piece[c->first_piece].item].tensor];
    for (uint32_t i = 0; i < c->pieces; i++) { /* the tensor that the offset lies in */
        const cfac_piece *x = &p->piece[c->first_piece + i];
        if (x->offset <= offset) t = &p->model->tensor[p->item[x->item].tensor];
    }
    if (err == 0)
        return cfac__fail_at(error, -EIO, CFAC_SHRANK, offset, t->name, (size_t)t->name_length,
                             "%s: became shorter while it was read", shown);
    return cfac__fail_at(error, err, CFAC_READ, offset, t->name, (size_t)t->name_length,
                         "%s: read: %s", shown, strerror(-err));
}

static void count(cfac_job *job, uint64_t bytes, bool direct, bool short_read, bool retry) {
    pthread_mutex_lock(&job->core->lock);
    cfac_counters *c = &job->counters;
    c->requests++;
    c->bytes += bytes;
    if (direct)
        c->direct_bytes += bytes;
    else
        c->buffered_bytes += bytes;
    c->short_reads += short_read;
    c->retries += retry;
    pthread_mutex_unlock(&job->core->lock);
}

/* Fill the vector from `offset` on. */
static int read_vector(cfac_job *job, uint32_t chunk, int fd, struct iovec *v, int n,
                       uint64_t offset, cfac_error *error) {
    while (n > 0) {
        if (v->iov_len == 0) {
            v++, n--;
            continue;
        }
        uint64_t want = 0, most = cfac__fault_limit(job, MAX_READ, false);
        int take = 0;
        size_t last = 0; /* of the vector's entry that the limit cuts */
        while (take < n && want < most) {
            last = v[take].iov_len;
            if (last > most - want) v[take].iov_len = (size_t)(most - want);
            want += v[take++].iov_len;
        }
        int fault = cfac__fault_result(job, chunk, false);
        ssize_t got = fault == 0 ? preadv(fd, v, take, (off_t)offset) : -1;
        int err = fault != 0 ? -fault : errno;
        v[take - 1].iov_len = last;
        bool retry = got < 0 && (err == EINTR || err == EAGAIN);
        count(job, got > 0 ? (uint64_t)got : 0, false, got > 0 && (uint64_t)got < want, retry);
        if (retry) continue;
        if (got <= 0) return cfac__read_failed(job, chunk, got < 0 ? -err : 0, offset, error);
        offset += (uint64_t)got;
        for (size_t left = (size_t)got; left > 0;) {
            size_t step = left < v->iov_len ? left : v->iov_len;
            v->iov_base = (char *)v->iov_base + step;
            v->iov_len -= step;
            left -= step;
            if (v->iov_len == 0) v++, n--;
        }
    }
    return 0;
}

int cfac__read_pieces(cfac_job *job, uint32_t chunk, cfac_error *error) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    const cfac_piece *pieces = &job->plan->piece[c->first_piece];
    int fd = job->file[c->file].fd, n = 0, r = 0;
    struct iovec v[VECTOR];
    uint64_t start = 0, end = 0;
    for (uint32_t i = 0; i < c->pieces && r == 0; i++) {
        const cfac_piece *x = &pieces[i];
        char *to = job->item[x->item].data + x->item_offset;
        if (n > 0 && x->offset == end && (char *)v[n - 1].iov_base + v[n - 1].iov_len == to) {
            v[n - 1].iov_len += (size_t)x->length; /* next to each other, as in a slab */
            end = x->offset + x->length;
            continue;
        }
        if (n == VECTOR || (n > 0 && x->offset != end)) {
            r = read_vector(job, chunk, fd, v, n, start, error);
            n = 0;
        }
        if (n == 0) start = x->offset;
        v[n++] = (struct iovec){to, (size_t)x->length};
        end = x->offset + x->length;
    }
    if (r == 0 && n > 0) r = read_vector(job, chunk, fd, v, n, start, error);
    return r;
}

/* Read the rest of a request. What O_DIRECT refuses, or leaves unaligned, is read buffered. */
int cfac__read_range(cfac_job *job, uint32_t chunk, request *q, cfac_error *error) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    file_run *f = &job->file[c->file];
    while (q->done < q->need) {
        if (q->direct && q->done % f->offset_alignment != 0) q->direct = false;
        uint64_t all = (q->direct ? q->length : q->need) - q->done;
        uint64_t most = cfac__fault_limit(job, MAX_READ, q->direct);
        uint64_t want = all < most ? all : most;
        int fault = cfac__fault_result(job, chunk, q->direct);
        ssize_t got = fault == 0 ? pread(q->direct ? f->direct_fd : f->fd, q->into + q->done,
                                         (size_t)want, (off_t)(q->offset + q->done))
                                 : -1;
        int err = fault != 0 ? -fault : errno;
        bool retry = got < 0 && (err == EINTR || err == EAGAIN);
        bool enough = got > 0 && q->done + (uint64_t)got >= q->need;
        count(job, got > 0 ? (uint64_t)got : 0, q->direct,
              got > 0 && (uint64_t)got < want && !enough, retry);
        if (retry) continue;
        if (got < 0 && q->direct && (err == EINVAL || err == EOPNOTSUPP || err == ENOSYS)) {
            cfac__file_refuse_direct(job, c->file);
            q->direct = false;
            continue;
        }
        if (got <= 0)
            return cfac__read_failed(job, chunk, got < 0 ? -err : 0, q->offset + q->done, error);
        q->done += (uint64_t)got;
    }
    return 0;
}
