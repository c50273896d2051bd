/* The workers of a job: they begin chunks, read what is read synchronously, and copy pieces. */
#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef struct worker {
    cfac_job *job;
    void *stream; /* CUDA */
    bool device_ready;
} worker;

/* ---- how a chunk is read ---- */

static bool viewable(const cfac_job *job, const cfac_piece *x) {
    uint32_t bytes = cfac__unit(job, x);
    return job->options.flags & CFAC_VIEWS && !job->item[x->item].given &&
           job->plan->item[x->item].chunks == 1 && (bytes < 2 || x->offset % bytes == 0);
}

/* Memory for the items of a chunk that are no views. Large ones lie in their page as they lie in the
 * file's, so that O_DIRECT can read into them. Locked. */
static bool own_items(cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    if (!cfac__slab_items(job, chunk)) return false;
    for (uint32_t i = 0; i < c->pieces; i++) {
        const cfac_piece *x = &job->plan->piece[c->first_piece + i];
        item_run *run = &job->item[x->item];
        if (run->given || run->view || run->buffer != NULL) continue;
        uint64_t length = job->plan->item[x->item].length, at = x->offset - x->item_offset;
        uint32_t bytes = cfac__unit(job, x);
        bool large = length >= 16 * PAGE && (bytes < 2 || at % bytes == 0);
        run->buffer = cfac__buffer_own(job->core, length, large ? at : 0);
        if (run->buffer == NULL) return false;
        run->data = run->buffer->data;
        job->undelivered += length;
    }
    return true;
}

static bool on_device(const cfac_job *job, const cfac_chunk *c) {
    for (uint32_t i = 0; i < c->pieces; i++)
        if (job->item[job->plan->piece[c->first_piece + i].item].device) return true;
    return false;
}

/* Can O_DIRECT read into the one item, or slab, of this chunk? */
static bool direct_in_place(const cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    if (job->chunk[chunk].slab != NULL) return true; /* whole pages */
    const file_run *f = &job->file[c->file];
    const cfac_piece *x = &job->plan->piece[c->first_piece];
    const char *into = job->item[x->item].data + x->item_offset;
    return c->pieces == 1 && c->offset % f->offset_alignment == 0 &&
           c->length % f->offset_alignment == 0 && (uintptr_t)into % f->memory_alignment == 0;
}

/* Will an O_DIRECT read to where it belongs be as fast as one to the ring? */
static bool lands_well(const cfac_job *job, uint32_t chunk) {
    const cfac_piece *x = &job->plan->piece[job->plan->chunk[chunk].first_piece];
    const item_run *item = &job->item[x->item];
    if (job->chunk[chunk].slab != NULL || !cfac__ring_is_better(job)) return true;
    if (item->given) return cfac__in_huge_pages(item->data + x->item_offset, x->length);
    return item->buffer->huge && !atomic_load(&job->core->small_pages);
}

/* Choose the source, and whether O_DIRECT. Unlocked. */
static void choose(cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    chunk_run *run = &job->chunk[chunk];
    file_run *f = &job->file[c->file];
    run->decided = true;
    run->backend = CFAC_PREAD;
    if (f->map != NULL) {
        run->backend = CFAC_MAPPED;
    } else if (job->options.delivery == CFAC_ITEMS && c->pieces == 1 && on_device(job, c) &&
               cfac__file_cufile(job, c->file)) {
        run->backend = CFAC_CUFILE;
    } else {
        uint32_t wish = c->read_length > 0 ? job->options.direct : (uint32_t)CFAC_DIRECT_NEVER;
        if (wish == CFAC_DIRECT_ALWAYS ||
            (wish == CFAC_DIRECT_AUTO && !f->memory &&
             !cfac__resident(f->fd, c->read_offset, c->read_length)))
            run->direct = cfac__file_direct(job, c->file);
    }
}

/* Memory to read into: the items' own, or a ring buffer. 1: ready; 0: parked; -ENOMEM. Locked. */
static int find_memory(cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    chunk_run *run = &job->chunk[chunk];
    core *k = job->core;
    bool chunks = job->options.delivery == CFAC_CHUNKS;
    if (run->buffer != NULL) return chunks || own_items(job, chunk) ? 1 : -ENOMEM;
    bool ring = chunks, some = false;
    if (!chunks && run->backend != CFAC_CUFILE && run->backend != CFAC_MAPPED) {
        ring = on_device(job, c);
        for (uint32_t i = 0; i < c->pieces; i++)
            some |= viewable(job, &job->plan->piece[c->first_piece + i]);
        if (some && k->viewed < k->most - RESERVED) {
            run->buffer = cfac__slot_take(k);
            run->views = run->buffer != NULL;
        }
        if (run->views) {
            run->buffer->viewed = true;
            k->viewed++;
            for (uint32_t i = 0; i < c->pieces; i++) {
                const cfac_piece *x = &job->plan->piece[c->first_piece + i];
                if (!viewable(job, x)) continue;
                job->item[x->item].view = true;
                run->buffer->pending++;
            }
            k->pending++;
        }
        if (!own_items(job, chunk)) return -ENOMEM;
        if (!run->views && run->direct)
            ring = ring || !direct_in_place(job, chunk) || !lands_well(job, chunk);
    } else if (!chunks && !own_items(job, chunk)) {
        return -ENOMEM;
    }
    if (ring && run->buffer == NULL) run->buffer = cfac__slot_take(k);
    run->in_place = !ring && run->buffer == NULL;
    if (run->in_place || run->buffer != NULL) {
        if (run->buffer != NULL) run->buffer->chunk = chunk;
        if (k->made > job->counters.buffers_peak) job->counters.buffers_peak = k->made;
        return 1;
    }
    if (k->made == 0) return -ENOMEM;
    run->state = PARKED;
    job->counters.ring_waits++;
    cfac__queue_put(job, &job->parked, chunk);
    return 0;
}

static bool make_request(cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    chunk_run *run = &job->chunk[chunk];
    const file_run *f = &job->file[c->file];
    request *q = run->request = calloc(1, sizeof *q);
    if (q == NULL) return false;
    uint64_t begin = c->read_offset, end = begin + c->read_length;
    q->chunk = chunk;
    q->direct = run->direct;
    q->fd = run->direct ? f->direct_fd : f->fd;
    if (run->in_place) {
        const cfac_piece *x = &job->plan->piece[c->first_piece];
        q->into = job->item[x->item].data + x->item_offset;
        if (run->slab != NULL) {
            begin = ALIGN_DOWN(begin, f->offset_alignment);
            end = ALIGN_UP(end, f->offset_alignment);
            run->whole = cfac__slab_memory(run->slab)->data;
            q->into = cfac__slab_memory(run->slab)->data + (begin - c->origin);
        }
    } else {
        if (run->direct) {
            begin = ALIGN_DOWN(begin, f->offset_alignment);
            end = ALIGN_UP(end, f->offset_alignment);
        }
        q->into = run->buffer->data + (begin - c->origin);
        run->whole = run->buffer->data;
    }
    q->offset = begin, q->length = end - begin;
    q->need = c->read_offset + c->read_length - begin;
    return true;
}

/* ---- the copies ---- */

static int use_device(worker *w, cfac_error *error) {
    const cuda *c = w->job->core->cuda;
    if (w->device_ready) return 0;
    int r = c->set_device(c->device); /* per thread */
    if (r == 0) r = c->stream_create(&w->stream, 1); /* cudaStreamNonBlocking */
    if (r != 0) return cfac__fail(error, -EIO, CFAC_DEVICE, "CUDA: %s", c->error_string(r));
    w->device_ready = true;
    return 0;
}

static int device_failed(const cfac_job *job, int r, cfac_error *error) {
    return cfac__fail(error, -EIO, CFAC_DEVICE, "CUDA: %s", job->core->cuda->error_string(r));
}

/* Copy the pieces that are no views from the chunk's bytes to where they belong. */
static int place(worker *w, uint32_t chunk, cfac_error *error) {
    cfac_job *job = w->job;
    const cfac_chunk *c = &job->plan->chunk[chunk];
    const chunk_run *run = &job->chunk[chunk];
    const cuda *device = job->core->cuda;
    uint64_t copied = 0;
    bool queued = false;
    int r = 0;
    for (uint32_t i = 0; i < c->pieces && r == 0; i++) {
        const cfac_piece *x = &job->plan->piece[c->first_piece + i];
        const item_run *item = &job->item[x->item];
        const char *from = run->whole + (x->offset - c->origin);
        if (item->view || (run->slab != NULL && item->buffer != NULL && item->buffer->slab != NULL))
            continue;
        if (item->device) {
            if ((r = use_device(w, error)) < 0) break;
            int failed = device->memcpy_async(item->data + x->item_offset, from, (size_t)x->length,
                                              4 /* cudaMemcpyDefault */, w->stream);
            if (failed) r = device_failed(job, failed, error);
            queued = true;
        } else {
            memcpy(item->data + x->item_offset, from, (size_t)x->length);
        }
        copied += x->length;
    }
    if (queued) { /* also after an error: the buffer must not be reused under a copy */
        int failed = device->stream_synchronize(w->stream);
        if (failed && r == 0) r = device_failed(job, failed, error);
    }
    pthread_mutex_lock(&job->core->lock);
    job->counters.copied_bytes += copied;
    pthread_mutex_unlock(&job->core->lock);
    return r;
}

static void checksum(cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    chunk_run *run = &job->chunk[chunk];
    uint32_t crc = 0;
    if (!(job->options.flags & CFAC_CHECKSUM) || run->backend == CFAC_CUFILE) return;
    if (c->segment > 0) {
        crc = cfac_crc32c(0, run->whole + (c->read_offset - c->origin), (size_t)c->read_length);
    } else {
        for (uint32_t i = 0; i < c->pieces; i++) {
            const cfac_piece *x = &job->plan->piece[c->first_piece + i];
            const char *from = run->in_place && run->slab == NULL && run->backend != CFAC_MAPPED
                                   ? job->item[x->item].data + x->item_offset
                                   : run->whole + (x->offset - c->origin);
            crc = cfac_crc32c(crc, from, (size_t)x->length);
        }
    }
    pthread_mutex_lock(&job->core->lock);
    run->crc = crc, run->has_crc = true;
    pthread_mutex_unlock(&job->core->lock);
}

/* ---- the ends ---- */

static void close_file(cfac_job *job, uint32_t file) { /* locked */
    file_run *f = &job->file[file];
    if (--f->left > 0) return;
    cfac__file_close(job, file);
    if (f->open) job->files_open--;
    f->open = false;
    for (uint32_t i; (i = cfac__queue_take(job, &job->starved)) != NONE;) {
        job->chunk[i].state = BEGUN;
        cfac__queue_put(job, &job->begin, i);
        pthread_cond_signal(&job->core->work);
    }
}

static void loaded(cfac_job *job, uint32_t chunk) { /* locked: its pieces are where they belong */
    const cfac_chunk *c = &job->plan->chunk[chunk];
    chunk_run *run = &job->chunk[chunk];
    cfac__job_event(job, CFAC_CHUNK_PLACED, chunk);
    cfac__slab_settle(job, chunk);
    for (uint32_t i = 0; i < c->pieces; i++) {
        const cfac_piece *x = &job->plan->piece[c->first_piece + i];
        item_run *item = &job->item[x->item];
        if (item->view) {
            item->data = run->buffer->data + (x->offset - c->origin);
            item->buffer = run->buffer;
            cfac_buffer_retain(run->buffer);
        }
        if (--item->left == 0) cfac__job_event(job, CFAC_ITEM_LOADED, x->item);
    }
    if (run->buffer == NULL && run->in_place) cfac__job_event(job, CFAC_CHUNK_DESTROYED, chunk);
    cfac__buffer_drop(run->buffer);
    run->buffer = NULL;
    run->state = DONE;
    job->unfinished--;
}

/* A chunk is read, or is to be placed: copy, and say so. */
static void finish(worker *w, uint32_t chunk) {
    cfac_job *job = w->job;
    chunk_run *run = &job->chunk[chunk];
    core *k = job->core;
    cfac_error error;
    bool chunks = job->options.delivery == CFAC_CHUNKS, placing = run->state == PLACING;
    if (run->continued) {
        run->continued = false;
        if (cfac__read_range(job, chunk, run->request, &error) < 0) {
            cfac__job_abort(job, &error);
            return;
        }
    }
    if (!placing) {
        pthread_mutex_lock(&k->lock);
        cfac__job_event(job, CFAC_CHUNK_IN_MEM, chunk);
        if (run->in_place)
            job->counters.in_place_bytes += job->plan->chunk[chunk].length - run->left_over;
        pthread_mutex_unlock(&k->lock);
        checksum(job, chunk);
    }
    bool copy = placing || (!chunks && (!run->in_place || run->left_over > 0 ||
                                        run->backend == CFAC_MAPPED));
    if (copy && place(w, chunk, &error) < 0) {
        cfac__job_abort(job, &error);
        return;
    }
    pthread_mutex_lock(&k->lock);
    if (placing) {
        loaded(job, chunk);
        job->placing--;
    } else {
        if (run->request != NULL) run->direct = run->request->direct; /* refused meanwhile? */
        free(run->request);
        run->request = NULL;
        job->in_flight--;
        close_file(job, job->plan->chunk[chunk].file);
        if (chunks)
            run->state = READ;
        else
            loaded(job, chunk);
    }
    cfac__job_schedule(job);
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

/* ---- the beginning ---- */

static int read_mapped(cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    chunk_run *run = &job->chunk[chunk];
    run->whole = job->file[c->file].map + c->origin;
    if (run->buffer != NULL) { /* to be delivered as a chunk */
        memcpy(run->buffer->data + (c->read_offset - c->origin),
               job->file[c->file].map + c->read_offset, (size_t)c->read_length);
        run->whole = run->buffer->data;
    }
    pthread_mutex_lock(&job->core->lock);
    job->counters.mapped_bytes += c->read_length;
    job->counters.bytes += c->read_length;
    pthread_mutex_unlock(&job->core->lock);
    return 0;
}

static int read_device(worker *w, uint32_t chunk, cfac_error *error) {
    cfac_job *job = w->job;
    const cfac_chunk *c = &job->plan->chunk[chunk];
    const cfac_piece *x = &job->plan->piece[c->first_piece];
    const cuda *device = job->core->cuda;
    int r = use_device(w, error);
    uint64_t done = 0;
    while (r == 0 && done < x->length) {
        uint64_t left = x->length - done, want = left < MAX_READ ? left : MAX_READ;
        ssize_t got = device->file_read(job->file[c->file].cufile, job->item[x->item].data,
                                        (size_t)want, (off_t)(x->offset + done),
                                        (off_t)(x->item_offset + done));
        if (got <= 0)
            return cfac__read_failed(job, chunk, got < 0 ? -EIO : 0, x->offset + done, error);
        done += (uint64_t)got;
        pthread_mutex_lock(&job->core->lock);
        job->counters.requests++;
        job->counters.bytes += (uint64_t)got;
        job->counters.device_bytes += (uint64_t)got;
        pthread_mutex_unlock(&job->core->lock);
    }
    return r;
}

/* Open the chunk's file. 1: open; 0: waits until another one is closed; or an error. */
static int open_file(cfac_job *job, uint32_t chunk, cfac_error *error) {
    uint32_t file = job->plan->chunk[chunk].file;
    for (int attempt = 0;; attempt++) {
        int r = cfac__file_open(job, file, error);
        if (r == 0) return 1;
        if (r != -EMFILE && r != -ENFILE) return r;
        pthread_mutex_lock(&job->core->lock);
        bool wait = job->files_open > 0;
        if (wait) {
            job->chunk[chunk].state = PARKED;
            cfac__queue_put(job, &job->starved, chunk);
        }
        pthread_mutex_unlock(&job->core->lock);
        if (wait) return 0;
        if (attempt > 0) return r;
    }
}

static bool asynchronous(const cfac_job *job, uint32_t chunk) {
#ifdef CFAC_TEST
    if (job->faults.delay_chunk == chunk + 1) return false; /* the I/O thread must not sleep */
#endif
    const chunk_run *run = &job->chunk[chunk];
    return job->engine != NULL && run->direct && job->plan->chunk[chunk].read_length > 0;
}

/* Fault in what the items' own memory lacks. */
static void fault_items(cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    const slab *done = NULL;
    for (uint32_t i = 0; i < c->pieces; i++) {
        const cfac_piece *x = &job->plan->piece[c->first_piece + i];
        const item_run *run = &job->item[x->item];
        const cfac_buffer *b = run->buffer;
        if (run->given || run->view || b == NULL) continue;
        if (b->slab == NULL) {
            cfac__buffer_fault(job->core, b, run->data + x->item_offset, x->length);
        } else if (b->slab != done) {
            const cfac_buffer *all = cfac__slab_memory(b->slab);
            cfac__buffer_fault(job->core, all, all->data, all->size);
            done = b->slab;
        }
    }
}

static void begin(worker *w, uint32_t chunk) {
    cfac_job *job = w->job;
    chunk_run *run = &job->chunk[chunk];
    cfac_error error;
    if (!run->decided) {
        int r = open_file(job, chunk, &error);
        if (r < 0) cfac__job_abort(job, &error);
        if (r <= 0) return;
        choose(job, chunk);
    }
    pthread_mutex_lock(&job->core->lock);
    bool first = run->buffer == NULL;
    int r = job->stopped ? 0 : find_memory(job, chunk);
    job->undecided -= first;
    cfac__job_schedule(job);
    if (r < 0) {
        cfac__fail(&error, r, CFAC_NO_MEMORY, "no memory to read into");
        cfac__job_fail(job, &error);
    }
    pthread_mutex_unlock(&job->core->lock);
    if (r <= 0) return;
    if (run->buffer != NULL) cfac__slot_prepare(run->buffer);
    fault_items(job, chunk);
    if (run->backend == CFAC_MAPPED) {
        r = read_mapped(job, chunk);
    } else if (run->backend == CFAC_CUFILE) {
        r = read_device(w, chunk, &error);
    } else if (run->in_place && !run->direct) {
        r = cfac__read_pieces(job, chunk, &error);
    } else if (!make_request(job, chunk)) {
        r = cfac__fail(&error, -ENOMEM, CFAC_NO_MEMORY, "no memory for a read");
    } else if (asynchronous(job, chunk)) {
        pthread_mutex_lock(&job->core->lock);
        run->backend = (uint8_t)job->engine->backend;
        job->submitting++;
        cfac__queue_put(job, &job->submitted, chunk);
        pthread_mutex_unlock(&job->core->lock);
        cfac__job_wake_io(job);
        return;
    } else {
        r = cfac__read_range(job, chunk, run->request, &error);
    }
    if (r < 0)
        cfac__job_abort(job, &error);
    else
        finish(w, chunk);
}

/* What is read is placed first, which frees memory, unless the disk has little to do: a virtual one
 * may say that reads are done only when all are, and would wait for all copies. */
static uint32_t next_chunk(cfac_job *job, bool *ready) {
    bool idle = job->engine != NULL && job->submitting < job->options.depth / 2;
    uint32_t chunk = idle ? cfac__queue_take(job, &job->begin) : NONE;
    *ready = chunk == NONE && (chunk = cfac__queue_take(job, &job->finish)) != NONE;
    return chunk != NONE ? chunk : cfac__queue_take(job, &job->begin);
}

void *cfac__worker(void *argument) {
    worker w = {.job = argument};
    cfac_job *job = w.job;
    core *k = job->core;
    prctl(PR_SET_NAME, "cfac");
    pthread_mutex_lock(&k->lock);
    for (;;) {
        bool ready = false;
        uint32_t chunk = job->stopped ? NONE : next_chunk(job, &ready);
        if (chunk != NONE) {
            pthread_mutex_unlock(&k->lock);
            if (ready)
                finish(&w, chunk);
            else
                begin(&w, chunk);
            pthread_mutex_lock(&k->lock);
        } else if (job->closing) {
            break;
        } else {
            pthread_cond_wait(&k->work, &k->lock);
        }
    }
    pthread_mutex_unlock(&k->lock);
    if (w.stream != NULL) k->cuda->stream_destroy(w.stream);
    return NULL;
}
