#define _GNU_SOURCE
#include "runner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static test *tests;
static char here[256], shared[256];
static const char *running = "?";

void register_test(test *t) {
    test **at = &tests;
    while (*at) at = &(*at)->next;
    *at = t;
}

static int remove_one(const char *path, const struct stat *s, int flag, struct FTW *f) {
    (void)s, (void)flag, (void)f;
    return remove(path);
}

static void clean(void) {
    if (*here) nftw(here, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    if (*shared) nftw(shared, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    *here = *shared = 0;
}

void failed(const char *file, int line, const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s:%d: %s: ", file, line, running);
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    clean();
    _exit(1);
}

bool has(const char *text, const char *part) { return strstr(text, part) != NULL; }

static const char *make_folder(char *into, size_t size, const char *parent) {
    if (*into == 0) {
        snprintf(into, size, "%s/cfac-test-XXXXXX", parent);
        if (mkdtemp(into) == NULL) failed(__FILE__, __LINE__, "mkdtemp %s", into);
    }
    return into;
}

const char *folder(void) {
    const char *parent = getenv("TMPDIR");
    return make_folder(here, sizeof here, parent ? parent : "/tmp");
}

static const char *joined(const char *parent, const char *name) {
    static char paths[16][600];
    static unsigned turn;
    char *out = paths[turn++ % 16];
    snprintf(out, sizeof paths[0], "%s/%s", parent, name);
    return out;
}

const char *in_folder(const char *name) { return joined(folder(), name); }

const char *in_shared_memory(const char *name) {
    return joined(make_folder(shared, sizeof shared, "/dev/shm"), name);
}

unsigned char content(const char *name, uint64_t at) {
    uint64_t x = at / 8 + 1;
    for (const char *c = name; *c; c++) x = x * 31 + (unsigned char)*c;
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    return (unsigned char)(x >> (at % 8 * 8));
}

void write_file(const char *path, const void *bytes, size_t size) {
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    EQUAL(fwrite(bytes, 1, size, f), size);
    EQUAL(fclose(f), 0);
}

void write_model(const char *path, const spec *tensors, size_t count, unsigned padding) {
    char *header = calloc(1, count * 256 + 4096);
    size_t n = 1;
    uint64_t at = 0;
    CHECK(header != NULL);
    header[0] = '{';
    for (size_t i = 0; i < count; i++) {
        n += (size_t)sprintf(header + n,
                             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}",
                             i ? "," : "", tensors[i].name, tensors[i].dtype, tensors[i].shape,
                             (unsigned long long)at, (unsigned long long)(at + tensors[i].size));
        at += tensors[i].size;
    }
    header[n++] = '}';
    for (unsigned i = 0; i < padding; i++) header[n++] = ' ';
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)n >> i * 8 & 255), f);
    EQUAL(fwrite(header, 1, n, f), n);
    free(header);
    static char block[1 << 16];
    for (size_t i = 0; i < count; i++) {
        for (uint64_t done = 0; done < tensors[i].size;) {
            uint64_t step = tensors[i].size - done;
            if (step > sizeof block) step = sizeof block;
            for (uint64_t k = 0; k < step; k++) block[k] = (char)content(tensors[i].name, done + k);
            EQUAL(fwrite(block, 1, (size_t)step, f), step);
            done += step;
        }
    }
    EQUAL(fclose(f), 0);
}

void check_content(const char *name, const void *bytes, uint64_t from, uint64_t length) {
    const unsigned char *b = bytes;
    for (uint64_t i = 0; i < length; i++)
        if (b[i] != content(name, from + i))
            failed(__FILE__, __LINE__, "%s differs at byte %llu", name,
                   (unsigned long long)(from + i));
}

void evict(const char *path) {
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    EQUAL(fsync(fd), 0);
    EQUAL(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
}

static int count_entries(const char *path) {
    DIR *d = opendir(path);
    int n = 0;
    CHECK(d != NULL);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

int count_threads(void) { return count_entries("/proc/self/task"); }
int count_descriptors(void) { return count_entries("/proc/self/fd") - 1; }

#ifdef __SANITIZE_ADDRESS__
/* Wait until all other threads sleep. The sanitizer's allocator is not made for fork(2), as
 * glibc's is: a lock that another thread holds at that moment stays locked in the child. */
static void await_stillness(void) {
    for (int still = 0; still < 20; still++) {
        DIR *d = opendir("/proc/self/task");
        CHECK(d != NULL);
        for (struct dirent *e; (e = readdir(d)) != NULL;) {
            char path[64], stat[256] = "";
            if (*e->d_name == '.' || atoi(e->d_name) == getpid()) continue;
            snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", e->d_name);
            int fd = open(path, O_RDONLY);
            if (fd < 0) continue; /* it has ended */
            if (read(fd, stat, sizeof stat - 1) > 0 && strstr(stat, ") S ") == NULL) still = 0;
            close(fd);
        }
        closedir(d);
        usleep(1000);
    }
}
#endif

int in_child(void (*run)(void)) {
    fflush(NULL);
#ifdef __SANITIZE_ADDRESS__
    await_stillness();
#endif
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(120); /* a child that hangs is a failure, not a test without end */
        run();
        _exit(0);
    }
    int status;
    EQUAL(waitpid(pid, &status, 0), pid);
    return status;
}

void forbid(const int *calls, size_t count, int error) {
    struct sock_filter code[32];
    unsigned short n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < count; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
                                                 SECCOMP_RET_ERRNO | (uint32_t)error);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, code};
    EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

int main(int count, char **names) {
    int ran = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (test *t = tests; t; t = t->next) {
        bool wanted = count == 1;
        for (int i = 1; i < count; i++) wanted |= strcmp(names[i], t->name) == 0;
        if (!wanted) continue;
        running = t->name;
        t->run();
        clean();
        printf("ok %s\n", t->name);
        ran++;
    }
    return ran > 0 ? 0 : 2;
}
