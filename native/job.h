/* A job's inside. One mutex, core.lock, guards everything but where a comment says otherwise. */
#ifndef CFAC_JOB_H
#define CFAC_JOB_H

#include "cuda.h"
#include "engine.h"

#define NONE UINT32_MAX
#define HUGE_PAGE ((uint64_t)2 << 20)
#define RESERVED 1u /* ring buffers that views may never hold: they keep the reads going */

typedef struct slab slab;

typedef struct core { /* what buffers share with their job, and keep after it */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* for the job's users */
    pthread_cond_t work;    /* for its workers */
    atomic_uint references; /* the job's, and one per ring buffer */
    pid_t pid;
    cfac_job *job; /* NULL once closed */
    cuda *cuda;
    cfac_buffer *free;
    cfac_buffer *dropped; /* memory of its own, kept for reuse; `kept` bytes, at most a ring's */
    uint64_t kept;
    struct slab *slabs;
    uint64_t dead; /* bytes of dropped items whose pages slabs still have */
    atomic_bool small_pages;             /* huge ones are slow to come */
    atomic_ullong huge_bytes, huge_ns; /* faulted in so far, and how long that took */
    uint32_t made, most; /* ring buffers */
    uint32_t viewed;     /* of them held by views, */
    uint32_t pending;    /* … some of which nobody took yet */
    uint64_t size;
} core;

struct cfac_buffer {
    atomic_uint references;
    core *core; /* NULL: memory of its own, */
    core *home; /* … that may be reused there */
    slab *slab; /* whose part it is */
    char *base, *data; /* base: to be freed, if of its own */
    uint64_t size, mapped; /* mapped: bytes at base, if not from malloc */
    bool viewed, pinned, fresh;
    bool huge, faulted; /* a mapping: may have huge pages; has all its pages */
    uint32_t pending; /* views that nobody took yet */
    uint32_t chunk;
    cfac_buffer *next;
};

/* buffer.c */
core *cfac__core_new(uint64_t size, uint32_t most);
void cfac__core_release(core *c);
cfac_buffer *cfac__slot_take(core *c); /* locked; NULL: none free, or no memory (see errno) */
void cfac__slots_free(core *c);        /* locked: those nobody holds */
void cfac__slot_prepare(cfac_buffer *b); /* unlocked: at its first use */
/* `size` bytes whose address is `offset` modulo a page, or aligned to 64 if offset is 0. */
cfac_buffer *cfac__buffer_own(core *c, uint64_t size, uint64_t offset); /* locked */
/* The same, always a mapping; NULL: none to be had. */
cfac_buffer *cfac__buffer_mapped(core *c, uint64_t size, uint64_t offset); /* locked */
void cfac__buffer_free(cfac_buffer *b); /* memory of its own that nobody refers to; not kept */
/* Would chunks that are read directly to small pages come faster by way of the ring? */
bool cfac__ring_is_better(const cfac_job *job);
/* Fault pages of a mapping in before they are read to. Unlocked. */
void cfac__buffer_fault(core *c, const cfac_buffer *b, char *data, uint64_t size);
bool cfac__buffer_drop(cfac_buffer *b); /* locked: as release */

/* slab.c */
/* Memory for the whole items of a chunk, if they are several that lie close together and have none
 * yet. False: no memory for the accounts. Locked. */
bool cfac__slab_items(cfac_job *job, uint32_t chunk);
void cfac__slab_settle(cfac_job *job, uint32_t chunk); /* its pieces are placed. Locked. */
const cfac_buffer *cfac__slab_memory(const slab *s);
void cfac__slab_drop(cfac_buffer *b); /* its last reference is gone. Unlocked. */
void cfac__slabs_sweep(core *c);   /* locked: give all dropped items' pages back */

/* file.c */
typedef struct file_run {
    pthread_mutex_t lock; /* guards the rest; descriptors stay until the last chunk is done */
    int fd, direct_fd;
    bool no_direct; /* not supported here */
    bool memory;    /* tmpfs, ramfs: nothing to be direct with */
    uint32_t memory_alignment, offset_alignment;
    char *map; /* of a sealed memory file */
    void *cufile;
    bool no_cufile;
    uint32_t left; /* chunks; guarded by core.lock */
    bool open;     /* guarded by core.lock */
} file_run;

int cfac__file_open(cfac_job *job, uint32_t file, cfac_error *error);
bool cfac__file_direct(cfac_job *job, uint32_t file); /* open for O_DIRECT; false: cannot be */
void cfac__file_refuse_direct(cfac_job *job, uint32_t file);
bool cfac__file_cufile(cfac_job *job, uint32_t file);
void cfac__file_close(cfac_job *job, uint32_t file);

typedef enum chunk_state {
    IDLE, BEGUN, PARKED, READ, DELIVERED, PLACING, DONE
} chunk_state;

typedef struct chunk_run {
    uint8_t state;
    uint8_t backend; /* cfac_backend that reads it */
    bool views;      /* its items may be views */
    bool direct, in_place, decided, continued, has_crc;
    uint32_t crc;
    uint32_t next; /* in a queue */
    cfac_buffer *buffer;
    slab *slab;        /* it is read to, by O_DIRECT; most items stay there */
    uint64_t left_over; /* bytes of items that do not */
    const char *whole; /* the bytes from the chunk's origin on */
    request *request;
} chunk_run;

typedef struct item_run {
    char *data;
    cfac_buffer *buffer;
    uint32_t left; /* pieces */
    bool given, device, view;
} item_run;

typedef struct queue {
    uint32_t first, last;
} queue;

struct cfac_job {
    core *core;
    cfac_plan *plan;
    cfac_job_options options;
    chunk_run *chunk;
    item_run *item;
    file_run *file;
    queue begin, finish, parked, starved, submitted; /* starved: for descriptors */
    uint32_t next_chunk, delivered, in_flight, undecided, placing, unfinished, given, files_open;
    uint32_t submitting; /* in flight and with the I/O thread */
    uint64_t undelivered; /* bytes of items in memory of their own that nobody took yet */
    uint64_t window;
    bool started, stopped, closing;
    cfac_error failure;
    cfac_counters counters;
    pthread_t *thread;
    uint32_t threads;
    pthread_t io_thread;
    bool has_io_thread;
    int event; /* wakes the I/O thread; -1 without one */
    engine *engine;
    char reason[CFAC_BACKENDS][160];
    cfac_event *events;
    size_t event_count, event_taken, event_room;
#ifdef CFAC_TEST
    cfac_faults faults;
    atomic_uint again_left, emfile_left;
#endif
};

/* Bytes of an element of a piece's tensor; 0: several in a byte. */
static inline uint32_t cfac__unit(const cfac_job *job, const cfac_piece *x) {
    return cfac_dtype_bits(job->plan->model->tensor[job->plan->item[x->item].tensor].dtype) / 8;
}

/* job.c */
bool cfac__job_forked(const cfac_job *job);
int cfac__refuse_fork(cfac_error *error);
void cfac__job_abort(cfac_job *job, const cfac_error *error); /* cfac__job_fail, not locked */

/* job.c, all locked */
void cfac__job_schedule(cfac_job *job);
void cfac__job_fail(cfac_job *job, const cfac_error *error);
void cfac__job_event(cfac_job *job, cfac_event_kind kind, uint32_t index);
void cfac__queue_put(cfac_job *job, queue *q, uint32_t chunk);
uint32_t cfac__queue_take(cfac_job *job, queue *q);
void cfac__job_wake_io(cfac_job *job);

/* read.c: the synchronous reads, unlocked */
int cfac__read_pieces(cfac_job *job, uint32_t chunk, cfac_error *error);
int cfac__read_range(cfac_job *job, uint32_t chunk, request *r, cfac_error *error);
int cfac__read_failed(cfac_job *job, uint32_t chunk, int err, uint64_t offset, cfac_error *error);
/* What one read may ask for, and what it shall give: the test builds' faults. */
uint64_t cfac__fault_limit(cfac_job *job, uint64_t most, bool direct);
int cfac__fault_result(cfac_job *job, uint32_t chunk, bool direct);

/* The threads: work.c, io_thread.c */
void *cfac__worker(void *job);
void *cfac__io_thread(void *job);

#endif
