/* The I/O thread of a job: it submits and reaps the asynchronous reads. */
#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

static void hand_over(cfac_job *job, uint32_t chunk, bool continued) {
    pthread_mutex_lock(&job->core->lock);
    job->chunk[chunk].continued = continued;
    job->submitting--;
    cfac__queue_put(job, &job->finish, chunk);
    pthread_cond_signal(&job->core->work);
    pthread_mutex_unlock(&job->core->lock);
}

/* A step of a request is over. True: it is to be submitted again. */
static bool step_done(cfac_job *job, request *q) {
    cfac_error error;
    int fault = cfac__fault_result(job, q->chunk, q->direct);
    int64_t result = fault != 0 ? fault : q->result;
    uint64_t left = q->length - q->done;
    bool retry = result == -EINTR || result == -EAGAIN;
    if (result > 0) q->done += (uint64_t)result;
    bool enough = q->done >= q->need;
    pthread_mutex_lock(&job->core->lock);
    cfac_counters *n = &job->counters;
    n->requests++;
    n->retries += retry;
    if (result > 0) {
        n->bytes += (uint64_t)result, n->direct_bytes += (uint64_t)result;
        n->short_reads += !enough && (uint64_t)result < left;
    }
    bool stopped = job->stopped;
    pthread_mutex_unlock(&job->core->lock);
    if (stopped) return false;
    if (retry) return true;
    if (enough) {
        hand_over(job, q->chunk, false);
        return false;
    }
    uint32_t file = job->plan->chunk[q->chunk].file;
    if (result == -EINVAL || result == -EOPNOTSUPP || result == -ENOSYS) {
        cfac__file_refuse_direct(job, file);
        q->direct = false;
        hand_over(job, q->chunk, true);
        return false;
    }
    if (result <= 0) {
        cfac__read_failed(job, q->chunk, (int)result, q->offset + q->done, &error);
        cfac__job_abort(job, &error);
        return false;
    }
    if (q->done % job->file[file].offset_alignment == 0) return true;
    hand_over(job, q->chunk, true); /* an unaligned rest */
    return false;
}

void *cfac__io_thread(void *argument) {
    cfac_job *job = argument;
    engine *e = job->engine;
    request *wait = NULL, **last = &wait; /* to be submitted, oldest first */
    /* Half of the chunks that are in flight: as soon as those are read, the others are submitted,
     * whose memory is there by then. */
    uint32_t flying = 0, most = (e->depth + 1) / 2;
    prctl(PR_SET_NAME, "cfac-io");
    for (;;) {
        pthread_mutex_lock(&job->core->lock);
        bool closing = job->closing, stopped = job->stopped;
        for (uint32_t i; !stopped && (i = cfac__queue_take(job, &job->submitted)) != NONE;) {
            request *q = job->chunk[i].request;
            q->next = NULL;
            *last = q, last = &q->next;
        }
        pthread_mutex_unlock(&job->core->lock);
        if (stopped) wait = NULL, last = &wait;
        while (wait != NULL && flying < most) {
            request *q = wait;
            int r = e->submit(e, q, cfac__fault_limit(job, MAX_READ, true));
            if (r == -EAGAIN && flying > 0) break; /* after the next completion */
            wait = q->next;
            if (wait == NULL) last = &wait;
            if (r == 0)
                flying++;
            else
                hand_over(job, q->chunk, true);
        }
        if (closing && flying == 0) return NULL;
        bool some = false;
        for (request *q; (q = e->reap(e)) != NULL;) {
            some = true;
            flying--;
            if (!step_done(job, q)) continue;
            q->next = NULL;
            *last = q, last = &q->next;
        }
        if (some) continue;
        struct pollfd p = {job->event, POLLIN, 0};
        uint64_t count;
        if (poll(&p, 1, -1) > 0 && read(job->event, &count, sizeof count) < 0) { /* raced: fine */
        }
    }
}
