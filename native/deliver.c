/* Taking what a job has read: the next item or chunk, placing a chunk, waiting for all. */
#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

/* Wait for a change, the first time of a call counted; -ETIMEDOUT past the deadline. Locked. */
static int wait_change(cfac_job *job, bool *waited, int timeout_ms,
                       const struct timespec *deadline) {
    if (!*waited) job->counters.consumer_waits++;
    *waited = true;
    if (timeout_ms < 0) return -pthread_cond_wait(&job->core->changed, &job->core->lock);
    return -pthread_cond_timedwait(&job->core->changed, &job->core->lock, deadline);
}

static struct timespec deadline_of(int timeout_ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (timeout_ms > 0) {
        t.tv_sec += timeout_ms / 1000;
        t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
        if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    }
    return t;
}

static int failed(const cfac_job *job, cfac_error *error) {
    if (error) *error = job->failure;
    return job->failure.error;
}

static void give_item(cfac_job *job, uint32_t index, cfac_result *out) {
    item_run *i = &job->item[index];
    uint64_t length = job->plan->item[index].length;
    cfac_counters *n = &job->counters;
    *out = (cfac_result){index, 0, i->data, length, NULL};
    if (length == 0) out->flags |= CFAC_EMPTY;
    if (i->given) {
        out->flags |= CFAC_PLACED, n->placed++;
        return;
    }
    out->buffer = i->buffer;
    i->buffer = NULL;
    if (length == 0) return;
    out->flags |= i->view ? CFAC_VIEW : CFAC_OWNED;
    if (!i->view) {
        n->owned++, job->undelivered -= length;
        return;
    }
    n->views++;
    if (--out->buffer->pending == 0) job->core->pending--;
}

static void give_chunk(cfac_job *job, uint32_t index, cfac_result *out) {
    chunk_run *c = &job->chunk[index];
    *out = (cfac_result){index, c->buffer->core ? CFAC_VIEW : CFAC_OWNED, c->buffer->data,
                         job->core->size, c->buffer};
    c->whole = c->buffer->data; /* for place; the reference is the caller's now */
    c->state = DELIVERED;
    if (c->buffer->core == NULL) cfac__job_event(job, CFAC_CHUNK_DESTROYED, index);
}

int cfac_job_next(cfac_job *job, int timeout_ms, cfac_result *out, cfac_error *error) {
    memset(out, 0, sizeof *out);
    return cfac_job_next_many(job, timeout_ms, out, 1, error);
}

int cfac_job_next_many(cfac_job *job, int timeout_ms, cfac_result *out, size_t count,
                       cfac_error *error) {
    if (cfac__job_forked(job)) return cfac__refuse_fork(error);
    struct timespec deadline = deadline_of(timeout_ms);
    bool chunks = job->options.delivery == CFAC_CHUNKS;
    size_t all = chunks ? job->plan->chunks : job->plan->items;
    int r = 0;
    bool waited = false;
    size_t given = 0;
    uint64_t bytes = 0; /* that are not the caller's own */
    pthread_mutex_lock(&job->core->lock);
    while (given < count) {
        if (!job->started) {
            r = cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "the job is not started");
            break;
        }
        if ((r = failed(job, error)) != 0 || job->delivered == all) break;
        uint32_t head = job->delivered;
        if (chunks ? job->chunk[head].state == READ : job->item[head].left == 0) {
            cfac_result *one = &out[given++];
            if (chunks)
                give_chunk(job, head, one);
            else
                give_item(job, head, one);
            job->delivered++;
            if (one->buffer != NULL) bytes += one->length;
            if (bytes >= job->core->size) break;
            continue;
        }
        if (given > 0) break;
        r = wait_change(job, &waited, timeout_ms, &deadline);
        if (r == -ETIMEDOUT) break;
    }
    if (given > 0) cfac__job_schedule(job);
    pthread_mutex_unlock(&job->core->lock);
    return given > 0 ? (int)given : r;
}

int cfac_job_place(cfac_job *job, uint32_t chunk, const void *whole, cfac_error *error) {
    if (cfac__job_forked(job)) return cfac__refuse_fork(error);
    const cfac_plan *p = job->plan;
    if (job->options.delivery != CFAC_CHUNKS || chunk >= p->chunks)
        return cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "no chunk %" PRIu32 " to place", chunk);
    for (uint32_t i = 0; i < p->chunk[chunk].pieces; i++) {
        const cfac_piece *x = &p->piece[p->chunk[chunk].first_piece + i];
        if (job->item[x->item].given) continue;
        const cfac_tensor *t = &p->model->tensor[p->item[x->item].tensor];
        return cfac__fail_at(error, -EINVAL, CFAC_ARGUMENT, CFAC_NO_OFFSET, t->name,
                             (size_t)t->name_length, "no destination was given");
    }
    pthread_mutex_lock(&job->core->lock);
    chunk_run *c = &job->chunk[chunk];
    int r = failed(job, error);
    if (r == 0 && c->state != DELIVERED)
        r = cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "chunk %" PRIu32 " is not delivered", chunk);
    if (r == 0) {
        c->state = PLACING;
        if (whole == NULL)
            cfac_buffer_retain(c->buffer);
        else
            c->whole = whole, c->buffer = NULL;
        job->placing++;
        cfac__queue_put(job, &job->finish, chunk);
        pthread_cond_signal(&job->core->work);
    }
    pthread_mutex_unlock(&job->core->lock);
    return r;
}

int cfac_job_wait(cfac_job *job, int timeout_ms, cfac_error *error) {
    if (cfac__job_forked(job)) return cfac__refuse_fork(error);
    bool chunks = job->options.delivery == CFAC_CHUNKS;
    if (!job->started || (!chunks && job->given < job->plan->items))
        return cfac__fail(error, -EINVAL, CFAC_ARGUMENT,
                          "wait needs a started job and a destination for every item");
    struct timespec deadline = deadline_of(timeout_ms);
    int r;
    bool waited = false;
    pthread_mutex_lock(&job->core->lock);
    while ((r = failed(job, error)) == 0 && (chunks ? job->placing : job->unfinished) > 0) {
        r = wait_change(job, &waited, timeout_ms, &deadline);
        if (r == -ETIMEDOUT) break;
    }
    pthread_mutex_unlock(&job->core->lock);
    return r;
}
