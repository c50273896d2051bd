/* The headers of some files: opened, checked and closed again, one after the other. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cfac__name_order(const name_entry *a, const name_entry *b) {
    size_t least = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->name, b->name, least);
    if (order != 0) return order;
    return a->length == b->length ? 0 : a->length < b->length ? -1 : 1;
}

static int compare(const void *a, const void *b) {
    const name_entry *x = a, *y = b;
    int order = cfac__name_order(x, y);
    return order != 0 ? order : x->index < y->index ? -1 : 1;
}

void cfac__sort(void *array, size_t count, size_t size, int (*order)(const void *, const void *)) {
    char *at = array;
    for (size_t i = 1; i < count; i++, at += size)
        if (order(at, at + size) > 0) {
            qsort(array, count, size, order);
            return;
        }
}

void cfac__sort_names(name_entry *names, size_t count) {
    cfac__sort(names, count, sizeof *names, compare);
}

static char *absolute(const char *path) {
    if (path[0] == '/') return strdup(path);
    char *here = getcwd(NULL, 0), *joined = NULL;
    if (here != NULL) {
        size_t room = strlen(here) + strlen(path) + 2;
        joined = malloc(room);
        if (joined != NULL) snprintf(joined, room, "%s/%s", here, path);
    }
    free(here);
    return joined;
}

static int system_error(cfac_error *error, const char *path, const char *what) {
    int err = errno;
    char shown[400];
    cfac__printable(shown, sizeof shown, path, strlen(path));
    return cfac__fail(error, -err, CFAC_SYSTEM, "%s: %s: %s", shown, what, strerror(err));
}

/* Open for reading. A FIFO does not block, and whatever is no regular file is an error. */
static int open_file(const char *path, int flags, struct stat *status, int *out,
                     cfac_error *error) {
    int fd;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return system_error(error, path, "open");
    if (fstat(fd, status) < 0) {
        int r = system_error(error, path, "fstat");
        close(fd);
        return r;
    }
    if (!S_ISREG(status->st_mode)) {
        char shown[400];
        bool folder = S_ISDIR(status->st_mode);
        cfac__printable(shown, sizeof shown, path, strlen(path));
        close(fd);
        return cfac__fail(error, folder ? -EISDIR : -EINVAL, CFAC_NOT_REGULAR, "%s: %s", shown,
                          folder ? "is a directory" : "is not a regular file");
    }
    *out = fd;
    return 0;
}

int cfac__open_again(const file_info *info, int flags, int *out, cfac_error *error) {
    struct stat s;
    int fd, r = open_file(info->path, flags, &s, &fd, error);
    if (r < 0) return r;
    bool same = s.st_dev == info->device && s.st_ino == info->inode &&
                (uint64_t)s.st_size == info->size && s.st_mtim.tv_sec == info->mtime_s &&
                s.st_mtim.tv_nsec == info->mtime_ns;
    if (same) {
        *out = fd;
        return 0;
    }
    close(fd);
    char shown[400];
    cfac__printable(shown, sizeof shown, info->path, strlen(info->path));
    return cfac__fail(error, -ESTALE, CFAC_CHANGED, "%s: changed since its header was read", shown);
}

static int read_header(file_info *info, int fd, cfac_error *error) {
    unsigned char first[64];
    uint64_t got, n;
    char shown[400];
    cfac__printable(shown, sizeof shown, info->path, strlen(info->path));
    int r = cfac__pread_all(fd, first, sizeof first, 0, &got);
    if (r < 0) return errno = -r, system_error(error, info->path, "read");
    r = cfac__header_length(first, (size_t)got, info->size, shown, &n, error);
    if (r < 0) return r;
    uint64_t length = 8 + n;
    unsigned char *bytes = malloc((size_t)length);
    if (bytes == NULL)
        return cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "%s: no memory for its header", shown);
    r = cfac__pread_all(fd, bytes, length, 0, &got);
    if (r < 0)
        errno = -r, r = system_error(error, info->path, "read");
    else if (got < length)
        r = cfac__fail(error, -EIO, CFAC_SHRANK, "%s: became shorter while it was read", shown);
    else
        r = cfac_header_parse(bytes, (size_t)length, info->size, shown, &info->header, error);
    free(bytes);
    info->data_start = length;
    return r;
}

static int add_file(file_info *info, const char *path, cfac_error *error) {
    struct stat s;
    int fd;
    info->path = absolute(path);
    if (info->path == NULL) {
        if (errno == ENOMEM) return cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "no memory");
        return system_error(error, path, "current directory");
    }
    int r = open_file(path, 0, &s, &fd, error);
    if (r < 0) return r;
    info->size = (uint64_t)s.st_size;
    info->device = s.st_dev, info->inode = s.st_ino;
    info->mtime_s = s.st_mtim.tv_sec, info->mtime_ns = s.st_mtim.tv_nsec;
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* no more than the header: the rest may be direct */
    r = read_header(info, fd, error);
    close(fd);
    return r;
}

static int index_tensors(cfac_model *m, uint32_t flags, cfac_error *error) {
    size_t text = 0, dims = 0; /* of all names, each with its NUL, and of all shapes */
    for (size_t i = 0; i < m->files; i++) {
        size_t count;
        const cfac_tensor *t = cfac_header_tensors(m->file[i].header, &count);
        m->tensors += count;
        for (size_t k = 0; k < count; k++) text += (size_t)t[k].name_length + 1, dims += t[k].ndim;
    }
    if (m->tensors >= UINT32_MAX)
        return cfac__fail(error, -EFBIG, CFAC_LAYOUT, "more tensors than 32 bits count");
    m->tensor = calloc(m->tensors + 1, sizeof *m->tensor);
    m->by_name = calloc(m->tensors + 1, sizeof *m->by_name);
    m->names = malloc(text + 1);
    m->shapes = malloc((dims + 1) * sizeof *m->shapes);
    if (m->tensor == NULL || m->by_name == NULL || m->names == NULL || m->shapes == NULL)
        return cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "no memory for the list of tensors");
    char *name = m->names;
    uint64_t *shape = m->shapes;
    size_t n = 0;
    for (size_t i = 0; i < m->files; i++) {
        size_t count;
        const cfac_tensor *t = cfac_header_tensors(m->file[i].header, &count);
        for (size_t k = 0; k < count; k++, n++) {
            size_t length = (size_t)t[k].name_length, ndim = t[k].ndim;
            m->tensor[n] = t[k];
            m->tensor[n].file = (uint32_t)i;
            m->tensor[n].name = memcpy(name, t[k].name, length + 1);
            m->tensor[n].shape = shape;
            if (ndim > 0) memcpy(shape, t[k].shape, ndim * sizeof *shape);
            m->by_name[n] = (name_entry){name, length, (uint32_t)n};
            name += length + 1, shape += ndim;
        }
    }
    cfac__sort_names(m->by_name, n);
    for (size_t i = 1; i < n && !(flags & CFAC_ALLOW_DUPLICATES); i++) {
        const name_entry *a = &m->by_name[i - 1], *b = &m->by_name[i];
        if (cfac__name_order(a, b) != 0) continue;
        char first[300], second[300];
        const char *one = m->file[m->tensor[a->index].file].path;
        const char *two = m->file[m->tensor[b->index].file].path;
        return cfac__fail_at(error, -EBADMSG, CFAC_DUPLICATE_TENSOR, CFAC_NO_OFFSET, a->name,
                             a->length, "a tensor is in two files: %s and %s",
                             cfac__printable(first, sizeof first, one, strlen(one)),
                             cfac__printable(second, sizeof second, two, strlen(two)));
    }
    return 0;
}

int cfac_model_open(const char *const *paths, size_t count, uint32_t flags, cfac_model **out,
                    cfac_error *error) {
    *out = NULL;
    if (flags & ~(uint32_t)CFAC_ALLOW_DUPLICATES || count >= UINT32_MAX)
        return cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "unknown flags, or too many files");
    cfac_model *m = calloc(1, sizeof *m);
    if (m != NULL) m->file = calloc(count + 1, sizeof *m->file);
    if (m == NULL || m->file == NULL) {
        free(m);
        return cfac__fail(error, -ENOMEM, CFAC_NO_MEMORY, "no memory for the list of files");
    }
    atomic_init(&m->references, 1);
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++) {
        m->files = i + 1;
        r = add_file(&m->file[i], paths[i], error);
    }
    if (r == 0) r = index_tensors(m, flags, error);
    if (r < 0) {
        cfac_model_free(m);
        return r;
    }
    *out = m;
    return 0;
}

void cfac__model_retain(cfac_model *m) { atomic_fetch_add(&m->references, 1); }

void cfac_model_free(cfac_model *m) {
    if (m == NULL || atomic_fetch_sub(&m->references, 1) > 1) return;
    for (size_t i = 0; i < m->files; i++) {
        free(m->file[i].path);
        cfac_header_free(m->file[i].header);
    }
    free(m->file), free(m->tensor), free(m->by_name), free(m->names), free(m->shapes);
    free(m);
}

const cfac_tensor *cfac_model_tensors(const cfac_model *m, size_t *count) {
    *count = m->tensors;
    return m->tensor;
}

int64_t cfac_model_find(const cfac_model *m, const char *name, size_t length) {
    name_entry wanted = {name, length, 0};
    size_t low = 0, high = m->tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cfac__name_order(&m->by_name[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == m->tensors || cfac__name_order(&m->by_name[low], &wanted) != 0) return -ENOENT;
    return m->by_name[low].index;
}

size_t cfac_model_files(const cfac_model *m) { return m->files; }

const char *cfac_model_path(const cfac_model *m, size_t file) {
    return file < m->files ? m->file[file].path : NULL;
}

const cfac_pair *cfac_model_metadata(const cfac_model *m, size_t file, size_t *count) {
    *count = 0;
    return file < m->files ? cfac_header_metadata(m->file[file].header, count) : NULL;
}

int cfac_model_read(const cfac_model *m, uint32_t tensor, uint64_t begin, uint64_t length,
                    void *into, cfac_error *error) {
    if (tensor >= m->tensors)
        return cfac__fail(error, -EINVAL, CFAC_ARGUMENT, "no tensor %u", tensor);
    const cfac_tensor *t = &m->tensor[tensor];
    if (begin > t->end - t->begin || length > t->end - t->begin - begin)
        return cfac__fail_at(error, -EINVAL, CFAC_ARGUMENT, CFAC_NO_OFFSET, t->name,
                             (size_t)t->name_length, "a range outside its tensor");
    if (length == 0) return 0;
    const file_info *info = &m->file[t->file];
    uint64_t got;
    int fd, r = cfac__open_again(info, 0, &fd, error);
    if (r < 0) return r;
    r = cfac__pread_all(fd, into, length, t->begin + begin, &got);
    close(fd);
    if (r < 0) return errno = -r, system_error(error, info->path, "read");
    if (got < length)
        return cfac__fail_at(error, -EIO, CFAC_SHRANK, t->begin + begin + got, t->name,
                             (size_t)t->name_length, "%s: became shorter while it was read",
                             info->path);
    return 0;
}
