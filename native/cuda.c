/* The function tables of cuda.h. Names and types: CUDA Runtime API, cuFile API reference. */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void *load(const char *given, const char *const *names, char *why, size_t size) {
    if (given != NULL && *given == 0) {
        snprintf(why, size, "switched off");
        return NULL;
    }
    void *h = NULL;
    if (given != NULL) {
        h = dlopen(given, RTLD_NOW | RTLD_LOCAL);
    } else { /* one that the process has already (torch's), then any */
        for (size_t i = 0; h == NULL && names[i]; i++)
            h = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        for (size_t i = 0; h == NULL && names[i]; i++) h = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (h == NULL) {
        const char *said = dlerror();
        snprintf(why, size, "%s", said ? said : "cannot be loaded");
    }
    return h;
}

static bool symbol(void *library, const char *name, void *into, char *why, size_t size) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        snprintf(why, size, "%s is missing", name);
        return false;
    }
    memcpy(into, &found, sizeof found); /* ISO C has no cast from void * to a function */
    return true;
}

int cfac__cuda_open(int device, const char *library, cuda **out, char *why, size_t size) {
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                        "libcudart.so", NULL};
    cuda *c = calloc(1, sizeof *c);
    if (c == NULL) return -ENOMEM;
    c->device = device;
    c->library = load(library, names, why, size);
    void *l = c->library;
    bool fine = l != NULL && symbol(l, "cudaSetDevice", &c->set_device, why, size) &&
                symbol(l, "cudaMemcpyAsync", &c->memcpy_async, why, size) &&
                symbol(l, "cudaStreamCreateWithFlags", &c->stream_create, why, size) &&
                symbol(l, "cudaStreamSynchronize", &c->stream_synchronize, why, size) &&
                symbol(l, "cudaStreamDestroy", &c->stream_destroy, why, size) &&
                symbol(l, "cudaHostRegister", &c->host_register, why, size) &&
                symbol(l, "cudaHostUnregister", &c->host_unregister, why, size) &&
                symbol(l, "cudaGetErrorString", &c->error_string, why, size);
    if (!fine) {
        cfac__cuda_close(c);
        return -ENOSYS;
    }
    int r = c->set_device(device);
    if (r != 0) {
        snprintf(why, size, "cudaSetDevice(%d): %s", device, c->error_string(r));
        cfac__cuda_close(c);
        return -ENODEV;
    }
    *out = c;
    return 0;
}

int cfac__cufile_open(cuda *c, const char *library, char *why, size_t size) {
    static const char *const names[] = {"libcufile.so.0", "libcufile.so", NULL};
    struct stat before, after;
    void *l = c->cufile = load(library, names, why, size);
    bool fine = l != NULL && symbol(l, "cuFileDriverOpen", &c->file_driver_open, why, size) &&
                symbol(l, "cuFileDriverClose", &c->file_driver_close, why, size) &&
                symbol(l, "cuFileHandleRegister", &c->file_register, why, size) &&
                symbol(l, "cuFileHandleDeregister", &c->file_deregister, why, size) &&
                symbol(l, "cuFileRead", &c->file_read, why, size);
    if (fine) {
        /* fastsafetensors#102: opening the driver damaged descriptor 0. Keep a copy, compare. */
        bool had = fstat(0, &before) == 0;
        int copy = had ? fcntl(0, F_DUPFD_CLOEXEC, 3) : -1;
        cufile_status s = c->file_driver_open();
        if (had && (fstat(0, &after) < 0 || after.st_ino != before.st_ino ||
                    after.st_dev != before.st_dev) && copy >= 0)
            dup2(copy, 0);
        if (copy >= 0) close(copy);
        fine = c->driver_open = s.error == 0;
        if (!fine) snprintf(why, size, "cuFileDriverOpen: error %d, CUDA %d", s.error, s.cuda);
    }
    if (!fine) {
        if (l != NULL) dlclose(l);
        c->cufile = NULL;
        return -ENOSYS;
    }
    return 0;
}

void cfac__cuda_close(cuda *c) {
    if (c == NULL) return;
    if (c->driver_open) c->file_driver_close();
    if (c->cufile != NULL) dlclose(c->cufile);
    if (c->library != NULL) dlclose(c->library);
    free(c);
}
