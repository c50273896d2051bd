/* Buffers: counted references to ring buffers and to memory of its own. A ring buffer whose last
 * reference goes returns to its job's ring, or, after the job, to the system. */
#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define SLACK 8000000u /* ns of a processor that huge pages may take more than small ones */
#define SMALL_RATE 3u   /* bytes per ns at which small pages are faulted in */
#define STEP ((uint64_t)65536) /* to which mappings are rounded, so that dropped ones fit again */
#define MAPPED_FROM ((uint64_t)1 << 20) /* bytes; there are only some 65,000 mappings */

core *cfac__core_new(uint64_t size, uint32_t most) {
    core *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_cond_init(&c->work, NULL);
    pthread_mutex_init(&c->lock, NULL);
    atomic_init(&c->references, 1);
    c->pid = getpid();
    c->size = size, c->most = most;
    return c;
}

void cfac__core_release(core *c) {
    if (atomic_fetch_sub(&c->references, 1) > 1) return;
    if (c->pid == getpid()) { /* in a forked child the lock may be held */
        cfac__cuda_close(c->cuda);
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->changed);
        pthread_cond_destroy(&c->work);
    }
    free(c);
}

/* Fault the pages in, once for all uses. False: the kernel cannot do that at once. */
static bool populate(char *data, uint64_t size) {
    return madvise(data, (size_t)size, MADV_POPULATE_WRITE) == 0;
}

static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A read that faults in 4 KiB pages one by one takes three times the time of the copy; faulting them
 * in first, two and a half times; 2 MiB pages, hardly more. But where memory is full and in pieces
 * the kernel moves pages around to make huge ones, which takes longer than small ones do. So their
 * time is taken, and none are asked for any more once they were slower than small ones. The
 * same goes for a virtual machine whose host takes free huge pages away. */
void cfac__buffer_fault(core *c, const cfac_buffer *b, char *data, uint64_t size) {
    if (b->mapped == 0 || b->faulted) return;
    char *begin = b->base + ALIGN_DOWN((uint64_t)(data - b->base), PAGE);
    uint64_t length = ALIGN_UP((uint64_t)(data - begin) + size, PAGE);
    if (!b->huge) {
        populate(begin, length);
        return;
    }
    if (atomic_load(&c->small_pages)) {
        madvise(begin, (size_t)length, MADV_NOHUGEPAGE);
        populate(begin, length);
        return;
    }
    uint64_t start = cpu_ns();
    if (!populate(begin, length)) atomic_store(&c->small_pages, true); /* an old kernel */
    uint64_t took = cpu_ns() - start, ns = atomic_fetch_add(&c->huge_ns, took) + took;
    uint64_t bytes = atomic_fetch_add(&c->huge_bytes, length) + length;
    if (ns > SLACK + bytes / SMALL_RATE) atomic_store(&c->small_pages, true);
}

/* A mapping; from a huge page on aligned to them, and nothing more than asked for. */
static char *map(uint64_t size, bool huge) {
    uint64_t more = huge ? HUGE_PAGE : 0;
    char *all = mmap(NULL, (size_t)(size + more), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    if (!huge) return all;
    uint64_t before = (HUGE_PAGE - (uintptr_t)all % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0) munmap(all, (size_t)before);
    if (more > before) munmap(all + before + size, (size_t)(more - before));
    madvise(all + before, (size_t)size, MADV_HUGEPAGE);
    return all + before;
}

/* A disk's request has so many pieces of memory (some hundred), and each takes time, more so where a
 * hypervisor is in between: to 4 KiB pages that do not lie together, a virtio disk read half as fast as
 * to huge ones. The ring has huge ones, since it is made once, and the copy out of it takes less. A
 * caller who wants no choice (CFAC_DIRECT_ALWAYS) gets none. */
bool cfac__ring_is_better(const cfac_job *job) {
    return job->options.direct == CFAC_DIRECT_AUTO && job->core->size >= HUGE_PAGE;
}

cfac_buffer *cfac__slot_take(core *c) {
    cfac_buffer *b = c->free;
    if (b != NULL) {
        c->free = b->next;
        atomic_store(&b->references, 1);
        return b;
    }
    errno = 0;
    if (c->made == c->most) return NULL;
    b = calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    void *data = c->size < HUGE_PAGE ? NULL : map(c->size, true);
    if (data == NULL) data = map(c->size, false);
    if (data == NULL) {
        free(b);
        errno = ENOMEM;
        return NULL;
    }
    atomic_init(&b->references, 1);
    b->core = c, b->data = data, b->size = c->size, b->fresh = true;
    atomic_fetch_add(&c->references, 1);
    c->made++;
    return b;
}

void cfac__slot_prepare(cfac_buffer *b) {
    if (b->core == NULL || !b->fresh) return;
    b->fresh = false;
    if (!populate(b->data, b->size))
        for (uint64_t i = 0; i < b->size; i += PAGE) *(volatile char *)(b->data + i) = 0;
    if (b->core->cuda != NULL)
        b->pinned = b->core->cuda->host_register(b->data, (size_t)b->size, 0) == 0;
}

static void unmap(cfac_buffer *b) {
    core *c = b->core;
    if (b->pinned && c->pid == getpid()) c->cuda->host_unregister(b->data);
    munmap(b->data, (size_t)b->size);
    free(b);
    cfac__core_release(c);
}

void cfac__buffer_free(cfac_buffer *b) {
    core *home = b->home;
    if (b->mapped > 0)
        munmap(b->base, (size_t)b->mapped);
    else
        free(b->base);
    free(b);
    if (home != NULL) cfac__core_release(home);
}

void cfac__slots_free(core *c) {
    cfac_buffer *b = c->free;
    c->free = NULL;
    while (b != NULL) {
        cfac_buffer *next = b->next;
        c->made--;
        unmap(b); /* the caller still has a reference to the core */
        b = next;
    }
    b = c->dropped;
    c->dropped = NULL, c->kept = 0;
    while (b != NULL) {
        cfac_buffer *next = b->next;
        cfac__buffer_free(b);
        b = next;
    }
}

/* A dropped one that fits, its pages faulted in already. */
static cfac_buffer *reuse(core *c, uint64_t whole) {
    for (cfac_buffer **at = &c->dropped; *at != NULL; at = &(*at)->next) {
        cfac_buffer *b = *at;
        if (b->mapped < whole || b->mapped - whole > whole / 4) continue;
        *at = b->next;
        c->kept -= b->mapped;
        return b;
    }
    return NULL;
}

cfac_buffer *cfac__buffer_mapped(core *c, uint64_t size, uint64_t offset) {
    if (size > SIZE_MAX - 2 * STEP - HUGE_PAGE) return NULL;
    uint64_t whole = ALIGN_UP(size + offset % PAGE, STEP);
    cfac_buffer *b = reuse(c, whole);
    if (b == NULL) {
        b = calloc(1, sizeof *b);
        if (b == NULL) return NULL;
        b->huge = whole >= HUGE_PAGE && !atomic_load(&c->small_pages);
        b->base = map(whole, b->huge);
        if (b->base == NULL) {
            free(b);
            return NULL;
        }
        b->mapped = whole, b->home = c;
        atomic_fetch_add(&c->references, 1);
    }
    atomic_store(&b->references, 1);
    b->data = b->base + offset % PAGE, b->size = size;
    return b;
}

/* Large ones are mapped: malloc would keep what is freed, tens of megabytes in each arena. */
cfac_buffer *cfac__buffer_own(core *c, uint64_t size, uint64_t offset) {
    if (size > SIZE_MAX - 2 * STEP) return NULL;
    cfac_buffer *b = size >= MAPPED_FROM ? cfac__buffer_mapped(c, size, offset) : NULL;
    if (b != NULL) return b;
    b = calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    void *base = NULL;
    if (posix_memalign(&base, offset ? PAGE : 64, (size_t)(size + offset % PAGE + 1)) != 0) {
        free(b);
        return NULL;
    }
    atomic_init(&b->references, 1);
    b->base = base;
    b->data = b->base + offset % PAGE, b->size = size;
    return b;
}

void cfac_buffer_retain(cfac_buffer *b) {
    if (b != NULL) atomic_fetch_add(&b->references, 1);
}

/* Keep a dropped buffer for the next large item, while the job goes on. */
static bool keep(cfac_buffer *b) {
    core *c = b->home;
    if (c == NULL || c->pid != getpid()) return false;
    atomic_fetch_add(&c->references, 1); /* the job may end as soon as the lock is free */
    pthread_mutex_lock(&c->lock);
    bool room = c->job != NULL && c->kept + c->dead + b->mapped <= c->most * c->size;
    if (room) {
        b->next = c->dropped;
        b->faulted = true; /* or nearly: what is not will be as it is used */
        c->dropped = b;
        c->kept += b->mapped;
    }
    pthread_mutex_unlock(&c->lock);
    cfac__core_release(c);
    return room;
}

bool cfac__buffer_drop(cfac_buffer *b) {
    if (b == NULL || atomic_fetch_sub(&b->references, 1) > 1) return false;
    core *c = b->core;
    if (c == NULL) {
        cfac__buffer_free(b);
        return false;
    }
    if (b->viewed) c->viewed--;
    if (b->pending > 0) c->pending--;
    b->viewed = false, b->pending = 0;
    if (c->job != NULL) cfac__job_event(c->job, CFAC_CHUNK_DESTROYED, b->chunk);
    b->next = c->free;
    c->free = b;
    return true;
}

void cfac_buffer_release(cfac_buffer *b) {
    if (b == NULL) return;
    core *c = b->core;
    if (c == NULL) {
        if (atomic_fetch_sub(&b->references, 1) > 1) return;
        if (b->slab != NULL)
            cfac__slab_drop(b);
        else if (!keep(b))
            cfac__buffer_free(b);
        return;
    }
    if (c->pid != getpid()) { /* the lock may be held by a thread that is not in this process */
        if (atomic_fetch_sub(&b->references, 1) == 1) unmap(b);
        return;
    }
    atomic_fetch_add(&c->references, 1); /* the last buffer may go, and the core with it */
    pthread_mutex_lock(&c->lock);
    if (cfac__buffer_drop(b)) {
        if (c->job != NULL)
            cfac__job_schedule(c->job);
        else
            cfac__slots_free(c);
    }
    pthread_mutex_unlock(&c->lock);
    cfac__core_release(c);
}
