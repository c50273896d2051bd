/* Asynchronous reads: io_uring and libaio by raw system calls, behind one small interface. An engine
 * belongs to one thread; completions are told through an eventfd. */
#ifndef CFAC_ENGINE_H
#define CFAC_ENGINE_H

#include "internal.h"

#include <linux/aio_abi.h>

typedef struct request { /* one contiguous read, in as many steps as it takes */
    int fd;
    uint32_t chunk;
    char *into;
    uint64_t offset, length; /* to be read: whole alignment blocks if direct */
    uint64_t need;           /* enough: what lies before the end of the file */
    uint64_t done;
    bool direct;
    int64_t result; /* of the last step */
    struct iovec vec;
    struct iocb iocb;
    struct request *next;
} request;

typedef struct engine engine;
struct engine {
    cfac_backend backend;
    uint32_t depth;
    int (*submit)(engine *e, request *r, uint64_t most); /* 0, or -errno: not submitted */
    request *(*reap)(engine *e);                         /* a finished request, or NULL */
    void (*close)(engine *e);                            /* none may be in flight */
};

int cfac__uring_open(uint32_t depth, int event, engine **out);
int cfac__aio_open(uint32_t depth, int event, engine **out);

#endif
