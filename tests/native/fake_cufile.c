/* A test double of libcufile: reads into the "device memory" of fake_cuda.c, in short steps. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct status {
    int error, cuda;
} status;

typedef struct description {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *operations;
} description;

status cuFileDriverOpen(void);
status cuFileDriverClose(void);
status cuFileHandleRegister(void **handle, description *d);
void cuFileHandleDeregister(void *handle);
ssize_t cuFileRead(void *handle, void *base, size_t size, off_t file_offset, off_t offset);

static const char *mode(void) {
    const char *m = getenv("FAKE_CUFILE");
    return m ? m : "";
}

status cuFileDriverOpen(void) {
    if (*mode() == 'z') close(0); /* fastsafetensors#102 */
    return (status){*mode() == 'd' ? 5001 : 0, 0};
}

status cuFileDriverClose(void) { return (status){0, 0}; }

status cuFileHandleRegister(void **handle, description *d) {
    if (*mode() == 'r') return (status){5027, 0};
    if (d->type != 1 || d->operations != NULL || !(fcntl(d->handle.fd, F_GETFL) & O_DIRECT))
        return (status){5022, 0};
    int *fd = malloc(sizeof *fd);
    if (fd == NULL) return (status){5001, 0};
    *fd = d->handle.fd;
    *handle = fd;
    return (status){0, 0};
}

void cuFileHandleDeregister(void *handle) { free(handle); }

ssize_t cuFileRead(void *handle, void *base, size_t size, off_t file_offset, off_t offset) {
    if (*mode() == 'e') return -5;
    size_t step = size < 5000 ? size : 5000;
    off_t from = file_offset / 4096 * 4096;
    size_t skip = (size_t)(file_offset - from), whole = (skip + step + 4095) / 4096 * 4096;
    char *own = aligned_alloc(4096, whole);
    if (own == NULL) return -1;
    ssize_t got = pread(*(int *)handle, own, whole, from);
    if (got < 0) return free(own), got;
    size_t there = (size_t)got > skip ? (size_t)got - skip : 0;
    if (there < step) step = there;
    for (size_t i = 0; i < step; i++) ((char *)base)[(size_t)offset + i] = own[skip + i];
    free(own);
    return (ssize_t)step;
}
