/* A tiny test runner: TEST(name) { … CHECK(…); }; the binary takes names to run, or runs all. */
#ifndef RUNNER_H
#define RUNNER_H

#include "cfac.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct test {
    const char *name;
    void (*run)(void);
    struct test *next;
} test;

void register_test(test *t);
_Noreturn void failed(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define TEST(title)                                                        \
    static void title(void);                                               \
    __attribute__((constructor)) static void register_##title(void) {      \
        static test t = {#title, title, NULL};                             \
        register_test(&t);                                                 \
    }                                                                      \
    static void title(void)

#define CHECK(condition) \
    do { if (!(condition)) failed(__FILE__, __LINE__, "%s", #condition); } while (0)
#define EQUAL(a, b)                                                                         \
    do {                                                                                    \
        long long a_ = (long long)(a), b_ = (long long)(b);                                 \
        if (a_ != b_) failed(__FILE__, __LINE__, "%s is %lld, not %lld", #a, a_, b_);       \
    } while (0)
#define HAS(text, part)                                                                     \
    do {                                                                                    \
        if (!has(text, part)) failed(__FILE__, __LINE__, "'%s' has no '%s'", text, part);   \
    } while (0)
/* A call that must succeed: its cfac_error is `error`. */
#define FINE(call)                                                                          \
    do {                                                                                    \
        cfac_error error = {0};                                                             \
        long long r_ = (call);                                                              \
        if (r_ < 0) failed(__FILE__, __LINE__, "%s: %lld %s", #call, r_, error.message);    \
    } while (0)

bool has(const char *text, const char *part);

/* This test's own folder (removed afterwards); a path in it, valid until the 16th next call. */
const char *folder(void);
const char *in_folder(const char *name);
const char *in_shared_memory(const char *name);

typedef struct spec { /* a tensor to write; its bytes follow from its name's hash and their place */
    const char *name, *dtype, *shape;
    uint64_t size;
} spec;

unsigned char content(const char *name, uint64_t at);
void write_model(const char *path, const spec *tensors, size_t count, unsigned padding);
void write_file(const char *path, const void *bytes, size_t size);
void check_content(const char *name, const void *bytes, uint64_t from, uint64_t length);
void evict(const char *path);     /* from the page cache, as far as the kernel does it */
int count_threads(void);          /* of this process */
int count_descriptors(void);
int in_child(void (*run)(void));  /* fork, run, exit 0 if it returns; its exit status */
void forbid(const int *calls, size_t count, int error); /* by seccomp, for this process */

#endif
