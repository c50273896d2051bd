/* The files of a job: opened when their first chunk begins, closed with their last. */
#define _GNU_SOURCE
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 0x0002
#endif

static void look(cfac_job *job, file_run *f, uint32_t file) {
    struct statfs s;
    if (fstatfs(f->fd, &s) == 0)
        f->memory = s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC || s.f_type == HUGETLBFS_MAGIC;
    /* A mapping is safe from SIGBUS only where the file cannot shrink. Elsewhere a read of tmpfs is
     * as fast (5-6 GB/s here, either way), lands in place and gives an error. */
    int seals = f->memory ? fcntl(f->fd, F_GET_SEALS) : -1;
    if (seals >= 0 && seals & F_SEAL_SHRINK) {
        uint64_t size = job->plan->model->file[file].size;
        void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, f->fd, 0);
        if (map != MAP_FAILED) f->map = map;
    }
    if (!f->memory) posix_fadvise(f->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
}

int cfac__file_open(cfac_job *job, uint32_t file, cfac_error *error) {
    file_run *f = &job->file[file];
    pthread_mutex_lock(&f->lock);
    int r = 0;
    bool opened = false;
    if (f->fd < 0) {
#ifdef CFAC_TEST
        unsigned left = atomic_load(&job->emfile_left);
        while (left > 0 && !atomic_compare_exchange_weak(&job->emfile_left, &left, left - 1)) {}
        if (left > 0)
            r = cfac__fail(error, -EMFILE, CFAC_SYSTEM, "too many open files (made up)");
        else
#endif
            r = cfac__open_again(&job->plan->model->file[file], 0, &f->fd, error);
        if (r == 0) look(job, f, file);
        opened = r == 0;
    }
    pthread_mutex_unlock(&f->lock);
    if (opened) {
        pthread_mutex_lock(&job->core->lock);
        f->open = true;
        job->files_open++;
        pthread_mutex_unlock(&job->core->lock);
    }
    return r;
}

bool cfac__file_direct(cfac_job *job, uint32_t file) {
    file_run *f = &job->file[file];
    pthread_mutex_lock(&f->lock);
    if (!f->no_direct && f->direct_fd < 0) {
        int fd;
        if (f->memory || cfac__open_again(&job->plan->model->file[file], O_DIRECT, &fd, NULL) < 0) {
            f->no_direct = true; /* EINVAL of the file system; EMFILE: do without, too */
        } else {
            f->direct_fd = fd;
            f->no_direct = !cfac__direct_alignment(fd, &f->memory_alignment, &f->offset_alignment) ||
                           PAGE % f->offset_alignment != 0 || PAGE % f->memory_alignment != 0;
        }
    }
    bool fine = !f->no_direct;
    pthread_mutex_unlock(&f->lock);
    return fine;
}

void cfac__file_refuse_direct(cfac_job *job, uint32_t file) {
    file_run *f = &job->file[file];
    pthread_mutex_lock(&f->lock);
    f->no_direct = true;
    pthread_mutex_unlock(&f->lock);
}

bool cfac__file_cufile(cfac_job *job, uint32_t file) {
    file_run *f = &job->file[file];
    cuda *c = job->core->cuda;
    if (c == NULL || c->cufile == NULL || !cfac__file_direct(job, file)) return false;
    pthread_mutex_lock(&f->lock);
    char why[160] = "";
    if (f->cufile == NULL && !f->no_cufile) {
        cufile_description d = {.type = 1, .handle = {.fd = f->direct_fd}};
        cufile_status s = c->file_register(&f->cufile, &d);
        if (s.error != 0) {
            f->cufile = NULL, f->no_cufile = true;
            snprintf(why, sizeof why, "cuFileHandleRegister: error %d, CUDA %d", s.error, s.cuda);
        }
    }
    bool fine = f->cufile != NULL;
    pthread_mutex_unlock(&f->lock);
    if (*why) {
        pthread_mutex_lock(&job->core->lock);
        if (!*job->reason[CFAC_CUFILE]) memcpy(job->reason[CFAC_CUFILE], why, sizeof why);
        pthread_mutex_unlock(&job->core->lock);
    }
    return fine;
}

void cfac__file_close(cfac_job *job, uint32_t file) {
    file_run *f = &job->file[file];
    int fd = f->fd, direct_fd = f->direct_fd;
    void *map = f->map, *cufile = f->cufile;
    f->cufile = NULL, f->map = NULL; /* first: a child forked now must not close others' */
    f->fd = f->direct_fd = -1;
    if (cufile != NULL && job->core->pid == getpid()) job->core->cuda->file_deregister(cufile);
    if (map != NULL) munmap(map, (size_t)job->plan->model->file[file].size);
    if (fd >= 0) close(fd);
    if (direct_fd >= 0) close(direct_fd);
}
