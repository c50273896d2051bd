/* Slabs: memory that the whole items of one chunk share, laid out as in the file, so that one read
 * fills it in place, whether direct or not.  Each item is yet freed by itself: a page is given back
 * with the last item that has bytes in it.  While the job goes on that waits until a ring's worth of
 * items is dropped, since a slab whose items are all dropped is used again with its pages. */
#define _GNU_SOURCE
#include "job.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define GIVEN_BACK UINT16_MAX
#define SLAB_FROM ((uint64_t)256 << 10) /* bytes; there are only some 65,000 mappings */

struct slab {
    core *home;
    cfac_buffer *memory; /* of which this is the one reference */
    slab *next, *before; /* in core.slabs */
    uint64_t dead;       /* bytes of items dropped since pages were last given back */
    uint32_t pages;
    atomic_uint live; /* items, and 1 while it is being filled */
    uint16_t users[]; /* of each page: items that have bytes in it, or GIVEN_BACK */
};

static slab *make(core *c, uint64_t size, uint64_t offset) {
    uint64_t pages = (size + offset % PAGE + PAGE - 1) / PAGE;
    slab *s = calloc(1, sizeof *s + pages * sizeof s->users[0]);
    if (s == NULL) return NULL;
    s->memory = cfac__buffer_mapped(c, size, offset);
    if (s->memory == NULL) {
        free(s);
        return NULL;
    }
    s->home = c, s->pages = (uint32_t)pages;
    atomic_init(&s->live, 1);
    s->next = c->slabs;
    if (s->next != NULL) s->next->before = s;
    c->slabs = s;
    return s;
}

static cfac_buffer *item(slab *s, uint64_t at, uint64_t size) {
    cfac_buffer *b = calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    atomic_init(&b->references, 1);
    b->slab = s, b->base = s->memory->base;
    b->data = s->memory->data + at, b->size = size;
    atomic_fetch_add(&s->live, 1);
    uint64_t first = (uint64_t)(b->data - b->base);
    for (uint64_t p = first / PAGE; p <= (first + size - 1) / PAGE; p++) s->users[p]++;
    return b;
}

const cfac_buffer *cfac__slab_memory(const slab *s) { return s->memory; }

/* Give back the pages from `p` on, before `end`, that nobody uses. */
static void give_back(slab *s, uint64_t p, uint64_t end) {
    while (p < end) {
        uint64_t from = p;
        while (p < end && s->users[p] == 0) s->users[p++] = GIVEN_BACK;
        if (p > from) {
            madvise(s->memory->base + from * PAGE, (size_t)((p - from) * PAGE), MADV_DONTNEED);
            s->memory->faulted = false;
        }
        if (p < end) p++;
    }
}

void cfac__slabs_sweep(core *c) {
    for (slab *s = c->slabs; s != NULL; s = s->next) {
        if (s->dead > 0) give_back(s, 0, s->pages);
        s->dead = 0;
    }
    c->dead = 0;
}

/* One user less; the memory to be released if it was the last. Locked. */
static cfac_buffer *leave(slab *s) {
    if (atomic_fetch_sub(&s->live, 1) > 1) return NULL;
    core *c = s->home;
    cfac_buffer *memory = s->memory;
    c->dead -= s->dead;
    if (s->before != NULL)
        s->before->next = s->next;
    else
        c->slabs = s->next;
    if (s->next != NULL) s->next->before = s->before;
    free(s);
    return memory;
}

static void filled(slab *s) {
    cfac_buffer *memory = leave(s);
    if (memory != NULL) cfac__buffer_free(memory); /* no item could be made */
}

static bool shareable(const cfac_job *job, const cfac_piece *x) {
    const item_run *run = &job->item[x->item];
    uint32_t unit = cfac__unit(job, x);
    return !run->given && !run->view && run->buffer == NULL &&
           job->plan->item[x->item].chunks == 1 && (unit < 2 || x->offset % unit == 0);
}

/* Count or discount what is read to a chunk's slab but does not stay there. */
static void left_over(cfac_job *job, uint32_t chunk, uint16_t by) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    slab *s = job->chunk[chunk].slab;
    for (uint32_t i = 0; i < c->pieces; i++) {
        const cfac_piece *x = &job->plan->piece[c->first_piece + i];
        const cfac_buffer *b = job->item[x->item].buffer;
        if (b != NULL && b->slab == s) continue;
        uint64_t at = x->offset - c->origin;
        for (uint64_t p = at / PAGE; p <= (at + x->length - 1) / PAGE; p++)
            s->users[p] = (uint16_t)(s->users[p] + by);
    }
}

void cfac__slab_settle(cfac_job *job, uint32_t chunk) {
    slab *s = job->chunk[chunk].slab;
    if (s == NULL || job->chunk[chunk].left_over == 0) return;
    left_over(job, chunk, UINT16_MAX); /* one less */
    s->dead += job->chunk[chunk].left_over;
    job->core->dead += job->chunk[chunk].left_over;
}

bool cfac__slab_items(cfac_job *job, uint32_t chunk) {
    const cfac_chunk *c = &job->plan->chunk[chunk];
    const cfac_piece *first = NULL, *last = NULL;
    uint64_t bytes = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->pieces; i++) {
        const cfac_piece *x = &job->plan->piece[c->first_piece + i];
        if (!shareable(job, x)) continue;
        if (first == NULL) first = x;
        last = x, bytes += x->length, count++;
    }
    if (count < 2 || bytes < SLAB_FROM) return true;
    bool small = c->length < HUGE_PAGE || atomic_load(&job->core->small_pages);
    bool all = job->chunk[chunk].direct && bytes >= c->length / 4 * 3 &&
               !(small && cfac__ring_is_better(job));
    uint64_t origin = all ? c->origin : ALIGN_DOWN(first->offset, PAGE);
    uint64_t size = (all ? c->offset + c->length : last->offset + last->length) - origin;
    if (bytes < size / 4 * 3) return true;
    if (job->core->kept + job->core->dead > job->window) cfac__slabs_sweep(job->core);
    slab *s = make(job->core, ALIGN_UP(size, PAGE), 0);
    if (s == NULL) return true;
    bool fine = true;
    for (const cfac_piece *x = first; x <= last; x++) {
        if (!shareable(job, x)) continue;
        item_run *run = &job->item[x->item];
        run->buffer = item(s, x->offset - origin, x->length);
        fine = run->buffer != NULL;
        if (!fine) break;
        run->data = run->buffer->data;
        job->undelivered += x->length;
    }
    if (fine && all) {
        job->chunk[chunk].slab = s;
        job->chunk[chunk].left_over = c->length - bytes;
        left_over(job, chunk, 1);
    }
    filled(s);
    return fine;
}

void cfac__slab_drop(cfac_buffer *b) {
    slab *s = b->slab;
    core *c = s->home;
    if (c->pid != getpid()) { /* the lock may be held by a thread that is not in this process */
        bool last = atomic_fetch_sub(&s->live, 1) == 1;
        if (last) cfac_buffer_release(s->memory);
        if (last) free(s);
        free(b);
        return;
    }
    atomic_fetch_add(&c->references, 1); /* the memory may go, and the core with it */
    pthread_mutex_lock(&c->lock);
    uint64_t at = (uint64_t)(b->data - b->base), first = at / PAGE;
    uint64_t end = (at + b->size - 1) / PAGE + 1;
    for (uint64_t p = first; p < end; p++) s->users[p]--;
    s->dead += b->size, c->dead += b->size;
    cfac_buffer *memory = leave(s);
    if (memory == NULL && c->job == NULL)
        give_back(s, first, end);
    else if (memory == NULL && c->kept + c->dead > c->most * c->size)
        cfac__slabs_sweep(c);
    pthread_mutex_unlock(&c->lock);
    free(b);
    cfac_buffer_release(memory); /* may be used again */
    cfac__core_release(c);
}
