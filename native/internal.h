/* Shared by the library's own files. */
#ifndef CFAC_INTERNAL_H
#define CFAC_INTERNAL_H

#include "cfac.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#define PAGE ((uint64_t)4096)
#define MAX_READ ((uint64_t)0x7ffff000) /* the most one read gives: read(2) */
#define ALIGN_DOWN(x, a) ((x) / (a) * (a))
#define ALIGN_UP(x, a) (((x) + (a) - 1) / (a) * (a))

/* error.c */
int cfac__fail(cfac_error *error, int err, cfac_code code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int cfac__fail_at(cfac_error *error, int err, cfac_code code, uint64_t offset, const char *name,
                  size_t name_length, const char *format, ...)
    __attribute__((format(printf, 7, 8)));
/* A printable copy of a name: control and broken bytes escaped, cut at a character. Gives `out`. */
char *cfac__printable(char *out, size_t size, const char *name, size_t length);

/* json.c: a strict pull parser */
typedef struct json {
    const unsigned char *start, *at, *end;
    char *text; /* room for all strings: as long as the input */
    size_t used;
    cfac_code code;   /* of the first error */
    const char *what; /* of the first error */
} json;

bool json__space(json *j); /* skip white space; false at the end */
bool json__take(json *j, unsigned char c);
bool json__string(json *j, const char **out, size_t *length);
bool json__integer(json *j, uint64_t *out);
bool json__skip(json *j); /* any value */
bool json__fail(json *j, cfac_code code, const char *what);

/* header.c */
int cfac__header_length(const unsigned char *bytes, size_t length, uint64_t file_size,
                        const char *label, uint64_t *out, cfac_error *error);

/* model.c */
typedef struct file_info {
    char *path;
    uint64_t size, device, inode;
    int64_t mtime_s, mtime_ns;
    cfac_header *header;
    uint64_t data_start;
} file_info;

struct cfac_model {
    atomic_uint references;
    size_t files, tensors;
    file_info *file;
    cfac_tensor *tensor;
    struct name_entry *by_name;
    char *names; /* in file order, each with a NUL behind it */
    uint64_t *shapes;
};

typedef struct name_entry {
    const char *name;
    size_t length;
    uint32_t index;
} name_entry;

void cfac__model_retain(cfac_model *model);
int cfac__open_again(const file_info *info, int flags, int *out, cfac_error *error);
/* qsort(3) of what is often in order already: then it only looks. `size` bytes each. */
void cfac__sort(void *array, size_t count, size_t size, int (*order)(const void *, const void *));
void cfac__sort_names(name_entry *names, size_t count);
int cfac__name_order(const name_entry *a, const name_entry *b);

/* plan.c */
struct cfac_plan {
    atomic_uint references;
    cfac_model *model;
    cfac_plan_options options;
    uint64_t buffer_size;
    size_t items, chunks, pieces;
    cfac_item *item;
    cfac_chunk *chunk;
    cfac_piece *piece;
};

/* io.c */
int cfac__pread_all(int fd, void *into, uint64_t length, uint64_t offset, uint64_t *got);
/* 1: in the page cache; 0: not, or not to be told */
int cfac__resident(int fd, uint64_t offset, uint64_t length);
/* Is nearly all of this memory in huge pages? False if the kernel does not tell (before Linux 6.7). */
bool cfac__in_huge_pages(const void *data, uint64_t length);
/* O_DIRECT's alignments of an open file; false: not supported */
bool cfac__direct_alignment(int fd, uint32_t *memory, uint32_t *offset);

/* limits.c */
uint64_t cfac__now_ns(void);

#endif
