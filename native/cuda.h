/* CUDA's runtime and cuFile, loaded with dlopen: one build for machines with and without. */
#ifndef CFAC_CUDA_H
#define CFAC_CUDA_H

#include "internal.h"

typedef struct cufile_status { /* CUfileError_t */
    int error;                 /* CUfileOpError; 0 is success */
    int cuda;                  /* CUresult */
} cufile_status;

typedef struct cufile_description { /* CUfileDescr_t */
    int type;                       /* CU_FILE_HANDLE_TYPE_OPAQUE_FD is 1 */
    union {
        int fd;
        void *handle;
    } handle;
    const void *operations;
} cufile_description;

typedef struct cuda {
    void *library, *cufile;
    int device;
    bool driver_open;
    int (*set_device)(int);
    int (*memcpy_async)(void *, const void *, size_t, int, void *);
    int (*stream_create)(void **, unsigned);
    int (*stream_synchronize)(void *);
    int (*stream_destroy)(void *);
    int (*host_register)(void *, size_t, unsigned);
    int (*host_unregister)(void *);
    const char *(*error_string)(int);
    cufile_status (*file_driver_open)(void);
    cufile_status (*file_driver_close)(void);
    cufile_status (*file_register)(void **, cufile_description *);
    void (*file_deregister)(void *);
    ssize_t (*file_read)(void *, void *, size_t, off_t, off_t);
} cuda;

/* Load CUDA's runtime; -errno with the reason in `why`. */
int cfac__cuda_open(int device, const char *library, cuda **out, char *why, size_t size);
/* Load cuFile into an open table; on failure only reads into device memory fall back to copies. */
int cfac__cufile_open(cuda *c, const char *library, char *why, size_t size);
void cfac__cuda_close(cuda *c);

#endif
