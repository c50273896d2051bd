/* A job from its opening to its close, and its schedule: which chunk begins when. */
#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEFAULT_DEPTH 16u
#define MAX_DEPTH 4096u
#define MAX_THREADS 256u

void cfac__queue_put(cfac_job *job, queue *q, uint32_t chunk) {
    job->chunk[chunk].next = NONE;
    if (q->first == NONE)
        q->first = chunk;
    else
        job->chunk[q->last].next = chunk;
    q->last = chunk;
}

uint32_t cfac__queue_take(cfac_job *job, queue *q) {
    uint32_t chunk = q->first;
    if (chunk != NONE) q->first = job->chunk[chunk].next;
    return chunk;
}

void cfac__job_event(cfac_job *job, cfac_event_kind kind, uint32_t index) {
    if (job->event_count < job->event_room)
        job->events[job->event_count++] = (cfac_event){cfac__now_ns(), (uint32_t)kind, index};
}

void cfac__job_wake_io(cfac_job *job) {
    uint64_t one = 1;
    if (job->event >= 0 && write(job->event, &one, sizeof one) < 0) { /* full: awake anyway */
    }
}

void cfac__job_fail(cfac_job *job, const cfac_error *error) {
    if (job->failure.error == 0) job->failure = *error;
    job->stopped = true;
    pthread_cond_broadcast(&job->core->changed);
    pthread_cond_broadcast(&job->core->work);
    cfac__job_wake_io(job);
}

void cfac__job_abort(cfac_job *job, const cfac_error *error) {
    pthread_mutex_lock(&job->core->lock);
    cfac__job_fail(job, error);
    pthread_mutex_unlock(&job->core->lock);
}

/* May the next chunk begin? Memory that nobody took yet is bounded, but what the consumer waits for
 * always goes on, however large it is. */
static bool may_begin(const cfac_job *job) {
    uint32_t next = job->next_chunk;
    if (next >= job->plan->chunks || job->in_flight >= job->options.depth) return false;
    if (job->options.delivery == CFAC_CHUNKS) return next - job->delivered < job->core->most;
    if (job->delivered >= job->plan->items) return true;
    const cfac_item *head = &job->plan->item[job->delivered];
    if (head->chunks > 0 && next < head->first_chunk + head->chunks) return true;
    if (job->undelivered >= job->window) return false;
    if (!(job->options.flags & CFAC_VIEWS)) return true;
    /* A buffer for views is worth waiting for while the consumer has views to take; once it holds
     * them all, reading goes on into memory of its own. */
    const core *c = job->core;
    return c->viewed + job->undecided < c->most - RESERVED ||
           c->viewed - c->pending >= c->most - RESERVED;
}

/* Buffers for the chunks that wait for one, the earliest first. */
static void serve_parked(cfac_job *job) {
    while (job->parked.first != NONE) {
        cfac_buffer *b = cfac__slot_take(job->core);
        /* Chunks that the consumer holds are not waited for: memory of its own, then. But those
         * being placed come back by themselves. */
        if (b == NULL && job->options.delivery == CFAC_CHUNKS && job->placing == 0)
            b = cfac__buffer_own(job->core, job->core->size, PAGE);
        if (b == NULL) return;
        uint32_t i = cfac__queue_take(job, &job->parked);
        job->chunk[i].buffer = b;
        b->chunk = i;
        job->chunk[i].state = BEGUN;
        cfac__queue_put(job, &job->begin, i);
        pthread_cond_signal(&job->core->work);
    }
}

void cfac__job_schedule(cfac_job *job) {
    if (!job->started || job->stopped) return;
    serve_parked(job);
    while (may_begin(job)) {
        uint32_t i = job->next_chunk++;
        job->chunk[i].state = BEGUN;
        job->in_flight++;
        job->undecided++;
        cfac__job_event(job, CFAC_CHUNK_BEGIN, i);
        cfac__queue_put(job, &job->begin, i);
        pthread_cond_signal(&job->core->work);
    }
}

/* ---- opening ---- */

static int prepare(cfac_job *job) {
    const cfac_plan *p = job->plan;
    job->chunk = calloc(p->chunks + 1, sizeof *job->chunk);
    job->item = calloc(p->items + 1, sizeof *job->item);
    job->file = calloc(p->model->files + 1, sizeof *job->file);
    job->thread = calloc(MAX_THREADS, sizeof *job->thread);
    if (job->options.flags & CFAC_EVENTS) {
        job->event_room = p->chunks * 4 + p->items;
        job->events = calloc(job->event_room + 1, sizeof *job->events);
    }
    if (!job->chunk || !job->item || !job->file || !job->thread ||
        (job->event_room > 0 && !job->events))
        return -ENOMEM;
    for (size_t i = 0; i < p->model->files; i++) {
        job->file[i].fd = job->file[i].direct_fd = -1;
        pthread_mutex_init(&job->file[i].lock, NULL);
    }
    for (size_t i = 0; i < p->chunks; i++) job->file[p->chunk[i].file].left++;
    for (size_t i = 0; i < p->items; i++) job->item[i].left = p->item[i].chunks;
    job->unfinished = (uint32_t)p->chunks;
    return 0;
}

static uint32_t ring_size(const cfac_job_options *o, uint64_t buffer) {
    uint64_t most = cfac_memory_left(NULL) / 4 / buffer;
    uint64_t ring = o->ring ? o->ring : DEFAULT_DEPTH;
    if (ring > most) ring = most;
    return ring < 2 ? 2 : (uint32_t)ring;
}

static void choose_backend(cfac_job *job) {
    cfac_job_options *o = &job->options;
    static const struct {
        cfac_backend backend;
        int (*open)(uint32_t, int, engine **);
    } engines[] = {{CFAC_IO_URING, cfac__uring_open}, {CFAC_LIBAIO, cfac__aio_open}};
    job->counters.backend = CFAC_PREAD;
    if (o->backend == CFAC_PREAD || o->direct == CFAC_DIRECT_NEVER) return;
    job->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int err = job->event < 0 ? errno : 0;
    for (size_t i = o->backend == CFAC_LIBAIO; i < 2 && job->engine == NULL; i++) {
        int r = err ? -err : engines[i].open(o->depth, job->event, &job->engine);
        if (r < 0)
            snprintf(job->reason[engines[i].backend], sizeof job->reason[0], "%s: %s",
                     err ? "eventfd" : i == 0 ? "io_uring_setup" : "io_setup", strerror(-r));
    }
    if (job->engine != NULL) {
        job->counters.backend = job->engine->backend;
    } else if (job->event >= 0) {
        close(job->event);
        job->event = -1;
    }
}

static int open_device(cfac_job *job, cfac_error *error) {
    const cfac_job_options *o = &job->options;
    char why[160] = "";
    if (o->device < 0) return 0;
    int r = cfac__cuda_open(o->device, o->cuda_library, &job->core->cuda, why, sizeof why);
    if (r < 0) return cfac__fail(error, r, CFAC_DEVICE, "CUDA device %d: %s", o->device, why);
    if (cfac__cufile_open(job->core->cuda, o->cufile_library, why, sizeof why) < 0)
        memcpy(job->reason[CFAC_CUFILE], why, sizeof why);
    return 0;
}

static int check_options(cfac_job_options *o, cfac_error *error) {
    if (o->size != sizeof *o)
        return cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "cfac_job_options of another version");
    bool fine = o->delivery <= CFAC_CHUNKS && o->backend <= CFAC_PREAD &&
                o->direct <= CFAC_DIRECT_ALWAYS && o->flags < CFAC_EVENTS * 2 &&
                o->depth <= MAX_DEPTH && o->threads <= MAX_THREADS && o->ring <= MAX_DEPTH;
#ifndef CFAC_TEST
    fine = fine && o->faults == NULL;
#endif
    if (!fine) return cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "a job option is out of range");
    if (o->depth == 0) o->depth = DEFAULT_DEPTH;
    return 0;
}

int cfac_job_open(cfac_plan *plan, const cfac_job_options *options, cfac_job **out,
                  cfac_error *error) {
    *out = NULL;
    cfac_job_options o = {.size = sizeof o, .device = -1};
    if (options) o = *options;
    int r = check_options(&o, error);
    if (r < 0) return r;
    cfac_job *job = calloc(1, sizeof *job);
    if (job == NULL) return cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "no memory for a job");
    job->event = -1;
    job->begin.first = job->finish.first = job->parked.first = NONE;
    job->starved.first = job->submitted.first = NONE;
    job->plan = plan;
    atomic_fetch_add(&plan->references, 1);
    job->options = o;
#ifdef CFAC_TEST
    if (o.faults) job->faults = *(const cfac_faults *)o.faults;
    atomic_init(&job->again_left, job->faults.again);
    atomic_init(&job->emfile_left, job->faults.open_emfile);
#endif
    uint32_t ring = ring_size(&o, plan->buffer_size);
    job->core = cfac__core_new(plan->buffer_size, ring);
    if (job->core == NULL || prepare(job) < 0) {
        cfac_job_close(job);
        return cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "no memory for a job");
    }
    job->core->job = job;
    job->window = ring * plan->buffer_size;
    if ((r = open_device(job, error)) < 0) {
        cfac_job_close(job);
        return r;
    }
    choose_backend(job);
    if (job->options.threads == 0) {
        uint32_t cores = cfac_cores();
        if (job->engine == NULL && cores < 2) cores = 2; /* one reads while the other copies */
        job->options.threads = cores > MAX_THREADS ? MAX_THREADS : cores;
    }
    job->counters.depth = o.depth, job->counters.ring = ring;
    *out = job;
    return 0;
}

bool cfac__job_forked(const cfac_job *job) { return job->core->pid != getpid(); }

int cfac__refuse_fork(cfac_error *error) {
    return cfac__fail(error, -ECHILD, CFAC_FORKED, "the job belongs to the process that forked");
}

int cfac_job_into(cfac_job *job, uint32_t item, void *data, uint64_t length, int device) {
    if (cfac__job_forked(job)) return -ECHILD;
    if (job->started || item >= job->plan->items || length != job->plan->item[item].length ||
        (data == NULL && length > 0))
        return -EINVAL;
    if (device && job->core->cuda == NULL) return -ENODEV;
    item_run *i = &job->item[item];
    if (i->given) return -EEXIST;
    i->data = data, i->given = true, i->device = device != 0;
    job->given++;
    return 0;
}

int cfac_job_into_many(cfac_job *job, const cfac_target *targets, size_t count) {
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++)
        r = cfac_job_into(job, targets[i].item, targets[i].data, targets[i].length,
                          (int)targets[i].device);
    return r;
}

static int start_threads(cfac_job *job) {
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the process's own threads */
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (size_t)1 << 20);
    int r = 0;
    if (job->engine != NULL) {
        r = pthread_create(&job->io_thread, &attributes, cfac__io_thread, job);
        job->has_io_thread = r == 0;
    }
    while (r == 0 && job->threads < job->options.threads) {
        r = pthread_create(&job->thread[job->threads], &attributes, cfac__worker, job);
        if (r == 0) job->threads++;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return job->threads > 0 ? 0 : -r; /* fewer than wanted will do */
}

int cfac_job_start(cfac_job *job, cfac_error *error) {
    if (cfac__job_forked(job)) return cfac__refuse_fork(error);
    if (job->started) return cfac__fail(error, -EALREADY, CFAC_ARGUMENT, "started already");
    pthread_mutex_lock(&job->core->lock);
    job->started = true;
    for (uint32_t i = 0; i < job->plan->items; i++)
        if (job->item[i].left == 0) cfac__job_event(job, CFAC_ITEM_LOADED, i);
    cfac__job_schedule(job);
    pthread_mutex_unlock(&job->core->lock);
    int r = start_threads(job);
    if (r == 0) {
        pthread_mutex_lock(&job->core->lock);
        job->counters.threads = job->threads;
        pthread_mutex_unlock(&job->core->lock);
        return 0;
    }
    cfac__fail(error, r, CFAC_SYSTEM, "cannot start a thread: %s", strerror(-r));
    pthread_mutex_lock(&job->core->lock);
    cfac_error failure;
    cfac__fail(&failure, r, CFAC_SYSTEM, "cannot start a thread: %s", strerror(-r));
    cfac__job_fail(job, &failure);
    pthread_mutex_unlock(&job->core->lock);
    return r;
}

/* ---- ending ---- */

void cfac_job_cancel(cfac_job *job) {
    if (cfac__job_forked(job)) return;
    cfac_error error;
    cfac__fail(&error, -ECANCELED, CFAC_CANCELLED, "cancelled");
    cfac__job_abort(job, &error);
}

static void free_all(cfac_job *job) {
    for (size_t i = 0; job->file && i < job->plan->model->files; i++) {
        cfac__file_close(job, (uint32_t)i);
        pthread_mutex_destroy(&job->file[i].lock);
    }
    for (size_t i = 0; job->chunk && i < job->plan->chunks; i++) free(job->chunk[i].request);
    if (job->engine) job->engine->close(job->engine);
    if (job->event >= 0) close(job->event);
    free(job->chunk), free(job->item), free(job->file), free(job->thread), free(job->events);
    cfac_plan_free(job->plan);
    free(job);
}

/* The references that the job still has: chunks on the way, items that nobody took. */
static void drop_buffers(cfac_job *job) {
    for (size_t i = 0; job->item && i < job->plan->items; i++)
        cfac_buffer_release(job->item[i].buffer);
    for (size_t i = 0; job->chunk && i < job->plan->chunks; i++)
        if (job->chunk[i].state != DELIVERED) cfac_buffer_release(job->chunk[i].buffer);
}

/* In a forked child the job is as its threads left it in the midst of something. Descriptors are
 * closed; memory stays: it is the parent's, seen through copy-on-write. */
static void abandon(cfac_job *job) {
    for (size_t i = 0; i < job->plan->model->files; i++) cfac__file_close(job, (uint32_t)i);
    if (job->engine) job->engine->close(job->engine);
    if (job->event >= 0) close(job->event);
}

void cfac_job_close(cfac_job *job) {
    if (job == NULL) return;
    core *c = job->core;
    if (c == NULL) { /* opening failed at once */
        free_all(job);
        return;
    }
    if (cfac__job_forked(job)) {
        abandon(job);
        return;
    }
    pthread_mutex_lock(&c->lock);
    job->stopped = job->closing = true;
    pthread_cond_broadcast(&c->changed);
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    cfac__job_wake_io(job);
    if (job->has_io_thread) pthread_join(job->io_thread, NULL);
    for (uint32_t i = 0; i < job->threads; i++) pthread_join(job->thread[i], NULL);
    pthread_mutex_lock(&c->lock);
    c->job = NULL;
    cfac__slots_free(c);
    cfac__slabs_sweep(c);
    pthread_mutex_unlock(&c->lock);
    drop_buffers(job);
    free_all(job);
    cfac__core_release(c);
}

int cfac_job_counters(cfac_job *job, cfac_counters *out, size_t size) {
    if (cfac__job_forked(job)) return -ECHILD;
    if (size != sizeof *out) return -EINVAL;
    pthread_mutex_lock(&job->core->lock);
    *out = job->counters;
    pthread_mutex_unlock(&job->core->lock);
    return 0;
}

const char *cfac_job_reason(cfac_job *job, uint32_t backend) {
    return backend < CFAC_BACKENDS ? job->reason[backend] : "";
}

int cfac_job_checksum(cfac_job *job, uint32_t chunk, uint32_t *out) {
    if (cfac__job_forked(job)) return -ECHILD;
    if (chunk >= job->plan->chunks) return -EINVAL;
    pthread_mutex_lock(&job->core->lock);
    bool known = job->chunk[chunk].has_crc;
    *out = job->chunk[chunk].crc;
    pthread_mutex_unlock(&job->core->lock);
    return known ? 0 : -ENODATA;
}

int cfac_job_path(cfac_job *job, uint32_t chunk, uint32_t *backend, uint32_t *flags) {
    if (cfac__job_forked(job)) return -ECHILD;
    if (chunk >= job->plan->chunks) return -EINVAL;
    pthread_mutex_lock(&job->core->lock);
    const chunk_run *run = &job->chunk[chunk];
    bool read = run->state >= READ;
    *backend = run->backend;
    *flags = (run->direct ? CFAC_PATH_DIRECT : 0) | (run->in_place ? CFAC_PATH_IN_PLACE : 0);
    pthread_mutex_unlock(&job->core->lock);
    return read ? 0 : -ENODATA;
}

int64_t cfac_job_events(cfac_job *job, cfac_event *out, size_t count) {
    if (cfac__job_forked(job)) return -ECHILD;
    pthread_mutex_lock(&job->core->lock);
    size_t left = job->event_count - job->event_taken;
    if (count > left) count = left;
    if (count > 0) memcpy(out, job->events + job->event_taken, count * sizeof *out);
    job->event_taken += count;
    pthread_mutex_unlock(&job->core->lock);
    return (int64_t)count;
}
