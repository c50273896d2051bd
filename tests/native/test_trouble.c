/* Trouble: the kernel's, the file's, the consumer's. */
#define _GNU_SOURCE
#include "loading.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const uint32_t backends[] = {CFAC_IO_URING, CFAC_LIBAIO, CFAC_PREAD};

static void with_faults(cfac_faults f, uint64_t *short_reads, uint64_t *retries) {
    *short_reads = *retries = 0;
    for (size_t b = 0; b < 3; b++)
        for (uint32_t direct = 1; direct <= 2; direct++) {
            cfac_job_options o = {.backend = backends[b], .direct = direct, .ring = 3, .faults = &f};
            loading l = open_job(in_folder("m"), 16384, o);
            FINE(cfac_job_start(l.job, &error));
            take_all(l, true);
            *short_reads += counters(l).short_reads;
            *retries += counters(l).retries;
            end(l);
        }
}

TEST(short_reads_are_continued) {
    uint64_t s, r;
    write_model(in_folder("m"), tensors, TENSORS, 1);
    with_faults((cfac_faults){.short_read = 3000}, &s, &r);
    EQUAL(r, 0); /* the reads are made short by asking for less */
    with_faults((cfac_faults){.short_read = 1}, &s, &r);
}

TEST(interrupted_reads_are_repeated) {
    uint64_t s, r;
    write_model(in_folder("m"), tensors, TENSORS, 1);
    with_faults((cfac_faults){.again = 9}, &s, &r);
    EQUAL(r, 6 * 9);
}

TEST(refused_direct_reads_fall_back) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    cfac_faults f = {.direct_einval = 1};
    for (size_t b = 0; b < 3; b++) {
        loading l = open_job(in_folder("m"), 16384,
                             (cfac_job_options){.backend = backends[b], .faults = &f,
                                                .direct = CFAC_DIRECT_ALWAYS});
        FINE(cfac_job_start(l.job, &error));
        take_all(l, false);
        CHECK(counters(l).buffered_bytes >= 361896);
        end(l);
    }
}

TEST(a_read_error_names_file_tensor_and_place) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    cfac_faults f = {.eio_chunk = 3};
    for (size_t b = 0; b < 3; b++)
        for (uint32_t direct = 1; direct <= 2; direct++) {
            loading l = open_job(in_folder("m"), 16384,
                                 (cfac_job_options){.backend = backends[b], .direct = direct,
                                                    .faults = &f});
            cfac_error e = start_and_fail(l);
            EQUAL(e.error, -EIO);
            EQUAL(e.code, CFAC_READ);
            EQUAL(e.offset, 32768);
            CHECK(strcmp(e.tensor, "large") == 0);
            HAS(e.message, "/m: ");
            cfac_result r;
            EQUAL(cfac_job_next(l.job, 0, &r, NULL), -EIO); /* for good */
            end(l);
        }
}

TEST(a_slow_chunk_does_not_change_the_order) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    cfac_faults f = {.delay_chunk = 1, .delay_ms = 50};
    loading l = open_job(in_folder("m"), 8192, (cfac_job_options){.faults = &f, .threads = 3});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    end(l);
}

TEST(next_times_out) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    cfac_faults f = {.delay_chunk = 1, .delay_ms = 300};
    loading l = open_job(in_folder("m"), 8192, (cfac_job_options){.faults = &f});
    FINE(cfac_job_start(l.job, &error));
    cfac_result r;
    EQUAL(cfac_job_next(l.job, 0, &r, NULL), -ETIMEDOUT);
    EQUAL(cfac_job_next(l.job, 10, &r, NULL), -ETIMEDOUT);
    CHECK(counters(l).consumer_waits >= 2);
    take_all(l, false);
    end(l);
}

TEST(a_file_truncated_after_opening_is_an_error) {
    for (size_t b = 0; b < 3; b++)
        for (uint32_t direct = 1; direct <= 2; direct++) {
            const char *path = in_folder("m");
            unlink(path);
            write_many(path, 100);
            cfac_faults f = {.delay_chunk = 1, .delay_ms = 100};
            loading l = open_job(path, 4096,
                                 (cfac_job_options){.backend = backends[b], .direct = direct,
                                                    .faults = &f, .depth = 1, .threads = 1});
            FINE(cfac_job_start(l.job, &error));
            nap(30); /* chunk 0 has the file open */
            EQUAL(truncate(path, 100000), 0);
            cfac_result r;
            cfac_error e;
            int got;
            while ((got = cfac_job_next(l.job, 20000, &r, &e)) == 1) {
                check_item(l, &r); /* never zeros */
                cfac_buffer_release(r.buffer);
            }
            EQUAL(got, -EIO);
            EQUAL(e.code, CFAC_SHRANK);
            CHECK(e.offset >= 100000 - 4096 && e.offset <= 100000);
            end(l);
        }
}

TEST(a_file_changed_since_its_header_is_refused) {
    write_many(in_folder("m"), 10);
    loading l = open_job(in_folder("m"), 4096, (cfac_job_options){0});
    EQUAL(rename(in_folder("m"), in_folder("old")), 0);
    write_many(in_folder("m"), 10);
    cfac_error e = start_and_fail(l);
    EQUAL(e.error, -ESTALE);
    EQUAL(e.code, CFAC_CHANGED);
    int other = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the number that the refused one had */
    end(l);
    EQUAL(close(other), 0); /* the job did not close it */
    l = open_job(in_folder("m"), 4096, (cfac_job_options){0});
    EQUAL(unlink(in_folder("m")), 0);
    EQUAL(start_and_fail(l).error, -ENOENT);
    end(l);
    for (int i = 0; i < 200; i++) { /* no thread goes on with what another one was refused */
        write_many(in_folder("m"), 10);
        l = open_job(in_folder("m"), 4096, (cfac_job_options){.threads = 3, .backend = CFAC_PREAD});
        EQUAL(truncate(in_folder("m"), 1), 0);
        EQUAL(start_and_fail(l).error, -ESTALE);
        end(l);
    }
}

TEST(made_up_descriptor_shortage_is_waited_out) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    cfac_faults f = {.open_emfile = 1};
    loading l = open_job(in_folder("m"), 8192, (cfac_job_options){.faults = &f, .threads = 1});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    end(l);
    f.open_emfile = 1000; /* nobody here will close one */
    l = open_job(in_folder("m"), 8192, (cfac_job_options){.faults = &f});
    EQUAL(start_and_fail(l).error, -EMFILE);
    end(l);
}

static void no_rings(void) {
    const int calls[] = {SYS_io_uring_setup};
    forbid(calls, 1, EPERM);
    loading l = open_job(in_folder("m"), 8192, (cfac_job_options){.direct = CFAC_DIRECT_ALWAYS});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    EQUAL(counters(l).backend, CFAC_LIBAIO);
    HAS(cfac_job_reason(l.job, CFAC_IO_URING), "io_uring_setup: Operation not permitted");
    CHECK(*cfac_job_reason(l.job, CFAC_LIBAIO) == 0);
    end(l);
}

static void no_asynchrony(void) {
    const int calls[] = {SYS_io_uring_setup, SYS_io_setup, SYS_statx, 451 /* cachestat */};
    forbid(calls, 4, ENOSYS);
    for (uint32_t direct = 0; direct <= 2; direct++) {
        loading l = open_job(in_folder("m"), 8192, (cfac_job_options){.direct = direct});
        FINE(cfac_job_start(l.job, &error));
        take_all(l, false);
        EQUAL(counters(l).backend, CFAC_PREAD);
        if (direct != CFAC_DIRECT_NEVER) {
            HAS(cfac_job_reason(l.job, CFAC_IO_URING), "Function not implemented");
            HAS(cfac_job_reason(l.job, CFAC_LIBAIO), "io_setup: Function not implemented");
        }
        end(l);
    }
}

static void refused_submits(void) {
    const int calls[] = {SYS_io_uring_enter, SYS_io_submit};
    forbid(calls, 2, EPERM);
    for (size_t b = 0; b < 2; b++) {
        loading l = open_job(in_folder("m"), 8192,
                             (cfac_job_options){.backend = backends[b],
                                                .direct = CFAC_DIRECT_ALWAYS});
        FINE(cfac_job_start(l.job, &error));
        take_all(l, false);
        end(l);
    }
}

static void aio_used_up(void) {
    const int calls[] = {SYS_io_uring_setup, SYS_io_setup};
    forbid(calls, 2, EAGAIN);
    loading l = open_job(in_folder("m"), 8192, (cfac_job_options){.direct = CFAC_DIRECT_ALWAYS});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    HAS(cfac_job_reason(l.job, CFAC_LIBAIO), "io_setup: Resource temporarily unavailable");
    end(l);
}

TEST(forbidden_calls_fall_back_with_a_reason) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    EQUAL(in_child(no_rings), 0);
    EQUAL(in_child(no_asynchrony), 0);
    EQUAL(in_child(refused_submits), 0);
    EQUAL(in_child(aio_used_up), 0);
}

static void little_locked_memory(void) {
    struct rlimit none = {0, 0};
    EQUAL(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    loading l = open_job(in_folder("m"), 8192, (cfac_job_options){.direct = CFAC_DIRECT_ALWAYS});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    end(l);
}

TEST(locked_memory_is_not_needed) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    EQUAL(in_child(little_locked_memory), 0);
}

TEST(close_leaves_no_thread_and_no_descriptor) {
    write_many(in_folder("m"), 100);
    int descriptors = count_descriptors(), threads = count_threads();
    for (int taken = 0; taken < 40; taken += 13)
        for (size_t b = 0; b < 3; b++) {
            loading l = open_job(in_folder("m"), 4096,
                                 (cfac_job_options){.backend = backends[b], .flags = CFAC_VIEWS,
                                                    .direct = b % 2 ? CFAC_DIRECT_ALWAYS : 0});
            FINE(cfac_job_start(l.job, &error));
            CHECK(count_threads() > threads);
            for (int i = 0; i < taken; i++) {
                cfac_result r;
                EQUAL(cfac_job_next(l.job, 20000, &r, NULL), 1);
                cfac_buffer_release(r.buffer);
            }
            end(l); /* in the midst of it */
            EQUAL(count_threads(), threads);
            EQUAL(count_descriptors(), descriptors);
        }
    end(open_job(in_folder("m"), 4096, (cfac_job_options){0})); /* never started */
    EQUAL(count_descriptors(), descriptors);
}

static void *cancel_soon(void *job) {
    nap(30);
    cfac_job_cancel(job);
    return NULL;
}

TEST(cancel_wakes_the_consumer) {
    write_many(in_folder("m"), 100);
    cfac_faults f = {.delay_chunk = 1, .delay_ms = 200};
    loading l = open_job(in_folder("m"), 4096, (cfac_job_options){.faults = &f});
    pthread_t t;
    EQUAL(pthread_create(&t, NULL, cancel_soon, l.job), 0);
    cfac_error e = start_and_fail(l);
    EQUAL(e.error, -ECANCELED);
    EQUAL(e.code, CFAC_CANCELLED);
    pthread_join(t, NULL);
    end(l);
}

static loading parents;
static cfac_result parents_view;

static void child_of_a_loader(void) {
    cfac_result r;
    cfac_error e;
    EQUAL(cfac_job_next(parents.job, -1, &r, &e), -ECHILD);
    EQUAL(e.code, CFAC_FORKED);
    EQUAL(cfac_job_wait(parents.job, -1, NULL), -ECHILD);
    check_item(parents, &parents_view);
    cfac_buffer_release(parents_view.buffer);
    end(parents); /* no thread of it is here: must not wait for one */
#ifndef __SANITIZE_THREAD__ /* it cannot start threads after such a fork */
    loading l = open_job(in_folder("m"), 4096, (cfac_job_options){0});
    FINE(cfac_job_start(l.job, &error)); /* and a new one works */
    take_all(l, false);
    end(l);
#endif
}

TEST(a_forked_child_can_let_go) {
    write_many(in_folder("m"), 100);
    for (size_t b = 0; b < 3; b++) {
        cfac_job_options o = {.flags = CFAC_VIEWS, .backend = backends[b],
                              .direct = CFAC_DIRECT_ALWAYS};
        parents = open_job(in_folder("m"), 4096, o);
        FINE(cfac_job_start(parents.job, &error));
        do { /* one that is a view */
            EQUAL(cfac_job_next(parents.job, 20000, &parents_view, NULL), 1);
            if (!(parents_view.flags & CFAC_VIEW)) cfac_buffer_release(parents_view.buffer);
        } while (!(parents_view.flags & CFAC_VIEW));
        EQUAL(in_child(child_of_a_loader), 0);
        cfac_result r;
        while (cfac_job_next(parents.job, 20000, &r, NULL) == 1) { /* the parent is not disturbed */
            check_item(parents, &r);
            cfac_buffer_release(r.buffer);
        }
        check_item(parents, &parents_view);
        cfac_buffer_release(parents_view.buffer);
        end(parents);
    }
}

static volatile sig_atomic_t signals;
static pthread_t main_thread;

static void on_signal(int number) {
    (void)number;
    if (pthread_equal(pthread_self(), main_thread)) signals++;
}

TEST(signals_go_to_the_programs_own_threads) {
    write_many(in_folder("m"), 100);
    main_thread = pthread_self();
    signal(SIGUSR1, on_signal);
    loading l = open_job(in_folder("m"), 4096, (cfac_job_options){.threads = 4});
    FINE(cfac_job_start(l.job, &error));
    for (int i = 0; i < 20; i++) kill(getpid(), SIGUSR1);
    take_all(l, true);
    end(l);
    CHECK(signals > 0);
    signal(SIGUSR1, SIG_DFL);
}

typedef struct releaser {
    cfac_buffer *buffer[100];
    int count;
} releaser;

static void *release_all(void *argument) {
    releaser *r = argument;
    for (int i = 0; i < r->count; i++) cfac_buffer_release(r->buffer[i]);
    return NULL;
}

TEST(buffers_are_released_from_any_thread_while_the_job_closes) {
    write_many(in_folder("m"), 100);
    for (int round = 0; round < 5; round++) {
        loading l = open_job(in_folder("m"), 16384, (cfac_job_options){.flags = CFAC_VIEWS, .ring = 4});
        FINE(cfac_job_start(l.job, &error));
        releaser some[2] = {0};
        for (int i = 0; i < 60; i++) {
            cfac_result r;
            EQUAL(cfac_job_next(l.job, 20000, &r, NULL), 1);
            some[i % 2].buffer[some[i % 2].count++] = r.buffer;
        }
        pthread_t t[2];
        for (int i = 0; i < 2; i++) EQUAL(pthread_create(&t[i], NULL, release_all, &some[i]), 0);
        end(l);
        for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    }
}
