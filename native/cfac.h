/* cfac: reads safetensors files in chunks. See README.md for threads, ownership and the ring.
 *
 * Every function that can fail returns 0 (or a count) on success and -errno otherwise, and, where it
 * takes a `cfac_error *` (which may be NULL), says there what went wrong. There is no global state.
 */
#ifndef CFAC_H
#define CFAC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CFAC_API __attribute__((visibility("default")))
#else
#define CFAC_API
#endif

/* Raised by one whenever a structure or a meaning below changes. */
#define CFAC_ABI 4
#define CFAC_NO_OFFSET UINT64_MAX
#define CFAC_HEADER_MAX 100000000u /* bytes; the limit of the safetensors library */
#define CFAC_MAX_DIMS 64u
#define CFAC_DEFAULT_CHUNK (8u << 20)

CFAC_API uint32_t cfac_abi(void);

/* ---- errors ---- */

/* The closed list of what can be wrong. Codes are stable: append only. */
typedef enum cfac_code {
    CFAC_OK = 0,
    CFAC_SYSTEM = 1,           /* a system call failed: see cfac_error.error */
    CFAC_ARGUMENT = 2,         /* a caller's mistake */
    CFAC_NO_MEMORY = 3,
    CFAC_NOT_REGULAR = 4,      /* a directory, FIFO, socket or device */
    CFAC_TOO_SHORT = 5,        /* fewer than the 8 bytes of the length field */
    CFAC_GIT_LFS = 6,          /* a git-lfs pointer, not the file it stands for */
    CFAC_ZIP = 7,              /* a zip archive: torch.save's format */
    CFAC_HEADER_LENGTH = 8,    /* header length 0, or past the end of the file */
    CFAC_HEADER_LIMIT = 9,     /* header longer than CFAC_HEADER_MAX */
    CFAC_NOT_OBJECT = 10,      /* the header does not begin with '{' */
    CFAC_UTF8 = 11,            /* invalid UTF-8, or a lone surrogate */
    CFAC_JSON = 12,            /* not JSON */
    CFAC_DEPTH = 13,           /* JSON nested too deeply, or a shape of too many dimensions */
    CFAC_DUPLICATE_KEY = 14,
    CFAC_METADATA = 15,        /* __metadata__ is not an object of strings */
    CFAC_MISSING_KEY = 16,     /* dtype, shape or data_offsets missing */
    CFAC_DTYPE = 17,           /* unknown dtype */
    CFAC_SHAPE = 18,           /* not a list of non-negative integers */
    CFAC_OFFSETS = 19,         /* not two non-negative integers in order */
    CFAC_SIZE = 20,            /* shape and dtype do not give the size of the offsets */
    CFAC_PACKED = 21,          /* packed elements do not fill whole bytes */
    CFAC_OVERLAP = 22,         /* tensors overlap */
    CFAC_HOLE = 23,            /* bytes that belong to no tensor, before or between tensors */
    CFAC_TRUNCATED = 24,       /* the file ends before its last tensor does */
    CFAC_TRAILING = 25,        /* bytes after the last tensor */
    CFAC_DUPLICATE_TENSOR = 26, /* one name in two files */
    CFAC_LAYOUT = 27,          /* a chunk layout that is not monotone, or too large */
    CFAC_CHANGED = 28,         /* the file is not the one whose header was read */
    CFAC_SHRANK = 29,          /* the file became shorter while it was read */
    CFAC_READ = 30,            /* a read failed */
    CFAC_DEVICE = 31,          /* CUDA or cuFile */
    CFAC_CANCELLED = 32,
    CFAC_FORKED = 33,          /* a job is used in a child of the process that opened it */
    CFAC_CODES = 34
} cfac_code;

typedef struct cfac_error {
    int32_t error;     /* -errno, as returned */
    int32_t code;      /* cfac_code */
    uint64_t offset;   /* in the file, or CFAC_NO_OFFSET */
    char tensor[256];  /* the tensor's name, or "" (cut after 255 bytes, never inside a character) */
    char message[768]; /* one line that names file, offset and tensor */
} cfac_error;

/* A code's name, such as "OVERLAP"; "?" for anything else. */
CFAC_API const char *cfac_code_name(int32_t code);

/* ---- headers ---- */

typedef enum cfac_dtype {
    CFAC_BOOL, CFAC_F4, CFAC_F6_E2M3, CFAC_F6_E3M2, CFAC_U8, CFAC_I8, CFAC_F8_E5M2, CFAC_F8_E4M3,
    CFAC_F8_E8M0, CFAC_F8_E4M3FNUZ, CFAC_F8_E5M2FNUZ, CFAC_I16, CFAC_U16, CFAC_F16, CFAC_BF16,
    CFAC_I32, CFAC_U32, CFAC_F32, CFAC_C64, CFAC_F64, CFAC_I64, CFAC_U64, CFAC_DTYPES
} cfac_dtype;

CFAC_API const char *cfac_dtype_name(uint32_t dtype); /* as in headers; NULL if there is none */
CFAC_API uint32_t cfac_dtype_bits(uint32_t dtype);    /* per element; 0 if there is none */

typedef struct cfac_tensor {
    const char *name; /* UTF-8 of name_length bytes, then a NUL (a name may hold NULs too) */
    const uint64_t *shape;
    uint64_t name_length;
    uint64_t begin, end; /* bytes of the file, from its start */
    uint32_t ndim;
    uint32_t dtype; /* cfac_dtype */
    uint32_t file;  /* index into the model's files */
    uint32_t reserved;
} cfac_tensor;

typedef struct cfac_pair { /* an entry of __metadata__ */
    const char *key, *value;
    uint64_t key_length, value_length;
} cfac_pair;

typedef struct cfac_header cfac_header;

/* Parse the start of a file: `bytes` must hold the length field and the whole header.
 * `label` names the file in messages. The bytes need not outlive the call. */
CFAC_API int cfac_header_parse(const void *bytes, size_t length, uint64_t file_size,
                               const char *label, cfac_header **out, cfac_error *error);
CFAC_API void cfac_header_free(cfac_header *header);
/* In file order: by begin, then end, then place in the header. */
CFAC_API const cfac_tensor *cfac_header_tensors(const cfac_header *header, size_t *count);
CFAC_API const cfac_pair *cfac_header_metadata(const cfac_header *header, size_t *count);

/* ---- models: the headers of some files ---- */

typedef struct cfac_model cfac_model;

enum { CFAC_ALLOW_DUPLICATES = 1 }; /* the same name in two files: find() gives the first */

/* Read and check the headers. No descriptor stays open. Paths are made absolute. */
CFAC_API int cfac_model_open(const char *const *paths, size_t count, uint32_t flags,
                             cfac_model **out, cfac_error *error);
CFAC_API void cfac_model_free(cfac_model *model); /* plans and jobs keep what they need */
/* In file order. Their names, each with its NUL, follow one another in memory, and so do their
 * shapes: all can be taken from the first one's pointer at once. */
CFAC_API const cfac_tensor *cfac_model_tensors(const cfac_model *model, size_t *count);
CFAC_API int64_t cfac_model_find(const cfac_model *model, const char *name, size_t length);
CFAC_API size_t cfac_model_files(const cfac_model *model);
CFAC_API const char *cfac_model_path(const cfac_model *model, size_t file);
CFAC_API const cfac_pair *cfac_model_metadata(const cfac_model *model, size_t file, size_t *count);
/* Read bytes [begin, begin + length) of a tensor in the calling thread. */
CFAC_API int cfac_model_read(const cfac_model *model, uint32_t tensor, uint64_t begin,
                             uint64_t length, void *into, cfac_error *error);

/* ---- plans: which bytes, in which chunks ---- */

typedef struct cfac_item { /* what to load: a tensor, or some bytes of one */
    uint32_t tensor;
    uint32_t chunks;      /* set by the plan: number of chunks, 0 for an empty item */
    uint64_t begin;       /* bytes of the tensor */
    uint64_t length;
    uint32_t first_chunk; /* set by the plan: item.chunks = first_chunk … first_chunk + chunks - 1 */
    uint32_t first_piece; /* set by the plan: one piece per chunk, neighbours in the list */
} cfac_item;

typedef struct cfac_piece { /* item ∩ chunk */
    uint32_t item, chunk;
    uint64_t offset;      /* in the file */
    uint64_t item_offset; /* in the item */
    uint64_t length;
} cfac_piece;

typedef struct cfac_chunk {
    uint64_t origin;         /* file offset of byte 0 of the chunk's buffer: a multiple of 4096 */
    uint64_t offset, length; /* the wanted bytes' hull, in the file */
    uint64_t read_offset, read_length; /* what this rank reads of it, in the file */
    uint64_t segment;        /* bytes per rank in the buffer, equal for all; 0 without ranks */
    uint32_t file;
    uint32_t first_piece, pieces; /* chunk.tensors */
    uint32_t reserved;
} cfac_chunk;

typedef struct cfac_plan_options {
    uint64_t chunk_size; /* a multiple of 4096; 0: CFAC_DEFAULT_CHUNK */
    uint32_t ranks, rank; /* 0 or 1 ranks: everything is read here */
} cfac_plan_options;

typedef struct cfac_plan cfac_plan;

/* `items` (tensor, begin, length) may be in any order, a tensor at most once; NULL: all tensors,
 * whole. The plan's own items are in file order, as a model's tensors. `options` may be NULL. */
CFAC_API int cfac_plan_make(const cfac_model *model, const cfac_item *items, size_t count,
                            const cfac_plan_options *options, cfac_plan **out, cfac_error *error);
CFAC_API void cfac_plan_free(cfac_plan *plan);
CFAC_API const cfac_item *cfac_plan_items(const cfac_plan *plan, size_t *count);
CFAC_API const cfac_chunk *cfac_plan_chunks(const cfac_plan *plan, size_t *count);
CFAC_API const cfac_piece *cfac_plan_pieces(const cfac_plan *plan, size_t *count);
CFAC_API uint64_t cfac_plan_buffer_size(const cfac_plan *plan); /* of a chunk's buffer */
/* One pass: chunks and items ascend through the pieces, and the pieces cover every item exactly. */
CFAC_API int cfac_layout_check(const cfac_item *items, size_t item_count, const cfac_chunk *chunks,
                               size_t chunk_count, const cfac_piece *pieces, size_t piece_count,
                               cfac_error *error);

/* ---- jobs: reading a plan ---- */

typedef struct cfac_job cfac_job;
typedef struct cfac_buffer cfac_buffer; /* counted references to memory; outlives its job */

typedef enum cfac_backend {
    CFAC_AUTO, CFAC_IO_URING, CFAC_LIBAIO, CFAC_PREAD, CFAC_CUFILE, CFAC_MAPPED, CFAC_BACKENDS
} cfac_backend;

typedef enum cfac_direct { CFAC_DIRECT_AUTO, CFAC_DIRECT_NEVER, CFAC_DIRECT_ALWAYS } cfac_direct;

typedef enum cfac_delivery {
    CFAC_ITEMS = 0, /* cfac_job_next hands out items in file order */
    CFAC_CHUNKS = 1 /* cfac_job_next hands out chunks in file order; the caller places them */
} cfac_delivery;

enum {
    CFAC_VIEWS = 1,    /* items may be views of a chunk's buffer (CFAC_ITEMS) */
    CFAC_CHECKSUM = 2, /* crc32c per chunk */
    CFAC_EVENTS = 4    /* record time stamps */
};

typedef struct cfac_job_options {
    uint32_t size;        /* sizeof(cfac_job_options) */
    uint32_t flags;
    uint32_t delivery;    /* cfac_delivery */
    uint32_t backend;     /* the first to try: CFAC_AUTO, CFAC_IO_URING, CFAC_LIBAIO, CFAC_PREAD */
    uint32_t direct;      /* cfac_direct */
    uint32_t depth;       /* chunks read at a time; 0: chosen */
    uint32_t threads;     /* 0: the cores of the affinity and the cgroup */
    uint32_t ring;        /* buffers; 0: chosen; never more than memory allows, never under 2 */
    int32_t device;       /* CUDA device of the destinations, or -1 */
    uint32_t reserved;
    const char *cuda_library, *cufile_library; /* NULL: the usual names. "": do not use */
    const void *faults;   /* cfac_faults in test builds; must be NULL otherwise */
} cfac_job_options;

enum { CFAC_VIEW = 1, CFAC_OWNED = 2, CFAC_PLACED = 4, CFAC_EMPTY = 8 };

typedef struct cfac_result {
    uint32_t index; /* of the item, or the chunk */
    uint32_t flags; /* CFAC_VIEW …: whose memory it is; CFAC_PLACED: the caller's own */
    void *data;     /* the item; or byte 0 of the chunk's buffer, its read bytes at
                       read_offset - origin */
    uint64_t length;
    cfac_buffer *buffer; /* one reference, to be released; NULL if placed or empty */
} cfac_result;

/* A job keeps its own reference to the plan: the plan may be freed. Nothing starts yet. */
CFAC_API int cfac_job_open(cfac_plan *plan, const cfac_job_options *options, cfac_job **out,
                           cfac_error *error);
/* Give an item's destination, `length` as in the plan; before start. `device`: a CUDA pointer. */
CFAC_API int cfac_job_into(cfac_job *job, uint32_t item, void *data, uint64_t length, int device);
typedef struct cfac_target {
    uint32_t item;
    uint32_t device; /* 1: a CUDA pointer */
    void *data;
    uint64_t length;
} cfac_target;

/* DLPackDLTensorFromPyObjectNoSync: fills a DLTensor of an object, whose memory it stays. 0: done. */
typedef int (*cfac_dl_tensor_of)(void *object, void *dl_tensor);
/* Tensors of another library as destinations of the tensors `numbers` (NULL: 0, 1, …) of a model, in
 * `out`: those on the CPU, without gaps, and of the same type and shape. Gives how many do before
 * the first that does not; -EEXIST if two share memory; -ENOMEM. */
CFAC_API int64_t cfac_model_targets(const cfac_model *model, const uint32_t *numbers,
                                    void *const *objects, size_t count, cfac_dl_tensor_of look,
                                    cfac_target *out);
/* cfac_job_into for many items; those before one that is refused are given. */
CFAC_API int cfac_job_into_many(cfac_job *job, const cfac_target *targets, size_t count);
CFAC_API int cfac_job_start(cfac_job *job, cfac_error *error);
/* 1: a result; 0: no more; -ETIMEDOUT; or the job's first error. timeout_ms < 0: no limit. */
CFAC_API int cfac_job_next(cfac_job *job, int timeout_ms, cfac_result *out, cfac_error *error);
/* As cfac_job_next, but as many of the next results as there are, up to `count`, and no more after a
 * buffer's size of memory that is not the caller's own: their number, or as above. */
CFAC_API int cfac_job_next_many(cfac_job *job, int timeout_ms, cfac_result *out, size_t count,
                                cfac_error *error);
/* CFAC_CHUNKS: copy a delivered chunk's pieces to the destinations given with cfac_job_into, in a
 * worker thread. `whole`: the bytes from the chunk's origin on; NULL: the buffer as delivered. They
 * must stay until cfac_job_wait has returned, or the chunk is finished. */
CFAC_API int cfac_job_place(cfac_job *job, uint32_t chunk, const void *whole, cfac_error *error);
/* Wait until all that was asked for is read and placed (CFAC_CHUNKS: every place call done). */
CFAC_API int cfac_job_wait(cfac_job *job, int timeout_ms, cfac_error *error);
/* Stop; all later calls give -ECANCELED. Does not wait for the reads. */
CFAC_API void cfac_job_cancel(cfac_job *job);
/* End all threads and reads, free everything but buffers still referenced; no other call may be
 * under way. In a forked child it only closes descriptors. */
CFAC_API void cfac_job_close(cfac_job *job);

CFAC_API void cfac_buffer_retain(cfac_buffer *buffer);
CFAC_API void cfac_buffer_release(cfac_buffer *buffer); /* any thread, also after close */
/* `data` of a buffer as a DLManagedTensor, which takes over a reference to it; NULL: no memory.
 * `type`: DLDataType's code * 256 + bits; `shape`: `ndim` sizes in elements, which are copied. */
CFAC_API void *cfac_buffer_dlpack(cfac_buffer *buffer, void *data, uint32_t type, uint32_t ndim,
                                  const int64_t *shape);

typedef struct cfac_counters {
    uint64_t bytes, requests;                /* read from files */
    uint64_t direct_bytes, buffered_bytes;   /* by O_DIRECT, through the page cache */
    uint64_t mapped_bytes, device_bytes;     /* copied from a mapping; read by cuFile */
    uint64_t in_place_bytes, copied_bytes;   /* landed in place; copied out of a buffer */
    uint64_t short_reads, retries;           /* reads continued; EINTR and EAGAIN */
    uint64_t views, owned, placed;           /* items, by whose memory */
    uint64_t ring_waits;                     /* chunks that waited for a free buffer */
    uint64_t consumer_waits;                 /* calls of next and wait that had to wait */
    uint64_t buffers_peak;                   /* chunk buffers at a time */
    uint64_t threads, depth, ring, backend;  /* what was chosen */
} cfac_counters;

CFAC_API int cfac_job_counters(cfac_job *job, cfac_counters *out, size_t size);
/* Why a backend is not used: "" if it is, or was not asked for. */
CFAC_API const char *cfac_job_reason(cfac_job *job, uint32_t backend);
CFAC_API int cfac_job_checksum(cfac_job *job, uint32_t chunk, uint32_t *out);

enum { CFAC_PATH_DIRECT = 1, CFAC_PATH_IN_PLACE = 2 };
/* How a chunk was read: a cfac_backend; whether O_DIRECT read it to its end; whether it landed where
 * it belongs. -ENODATA if it is not read yet. */
CFAC_API int cfac_job_path(cfac_job *job, uint32_t chunk, uint32_t *backend, uint32_t *flags);

typedef enum cfac_event_kind {
    CFAC_CHUNK_BEGIN, CFAC_CHUNK_IN_MEM, CFAC_CHUNK_PLACED, CFAC_CHUNK_DESTROYED, CFAC_ITEM_LOADED
} cfac_event_kind;

typedef struct cfac_event {
    uint64_t ns; /* CLOCK_MONOTONIC */
    uint32_t kind, index;
} cfac_event;

/* Take up to `count` recorded events, in the order of their recording; gives their number. */
CFAC_API int64_t cfac_job_events(cfac_job *job, cfac_event *out, size_t count);

/* crc32c (Castagnoli) of more bytes: start with 0. */
CFAC_API uint32_t cfac_crc32c(uint32_t crc, const void *data, size_t length);
/* Cores that the affinity mask and the cgroup's quota allow, at least 1. */
CFAC_API uint32_t cfac_cores(void);
/* Bytes that the cgroup (and the machine) still allow; `root` NULL: the real /sys and /proc. */
CFAC_API uint64_t cfac_memory_left(const char *root);

#ifdef CFAC_TEST
/* Test builds only: made-up trouble. Chunk numbers are plan indices. */
typedef struct cfac_faults {
    uint32_t short_read;    /* cut every read to at most this many bytes (rounded to 4096 if direct) */
    uint32_t eio_chunk;     /* reading chunk eio_chunk - 1 fails with EIO */
    uint32_t again;         /* the first so many reads give EAGAIN or EINTR, in turns */
    uint32_t delay_chunk;   /* chunk delay_chunk - 1 … */
    uint32_t delay_ms;      /* … takes so long */
    uint32_t direct_einval; /* O_DIRECT reads give EINVAL */
    uint32_t open_emfile;   /* the first so many opens give EMFILE */
} cfac_faults;
#endif

#ifdef __cplusplus
}
#endif
#endif
