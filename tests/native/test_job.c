/* Jobs: every way to read and to deliver gives the file's bytes. */
#define _GNU_SOURCE
#include "internal.h"
#include "loading.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void load_every_way(const char *path, uint32_t backend, uint32_t direct) {
    const uint64_t sizes[] = {4096, 8192, 65536, 1 << 20};
    for (size_t s = 0; s < 4; s++) {
        for (unsigned way = 0; way < 4; way++) {
            cfac_job_options o = {.flags = way & 1 ? CFAC_VIEWS : 0, .backend = backend,
                                  .direct = direct, .ring = 3, .depth = 5};
            loading l = open_job(path, sizes[s], o);
            FINE(cfac_job_start(l.job, &error));
            take_all(l, way & 2);
            end(l);
        }
    }
}

TEST(pread_loads_every_way) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    load_every_way(in_folder("m"), CFAC_PREAD, CFAC_DIRECT_NEVER);
    load_every_way(in_folder("m"), CFAC_PREAD, CFAC_DIRECT_ALWAYS);
    load_every_way(in_folder("m"), CFAC_PREAD, CFAC_DIRECT_AUTO);
}

TEST(io_uring_loads_every_way) {
    write_model(in_folder("m"), tensors, TENSORS, 2);
    load_every_way(in_folder("m"), CFAC_IO_URING, CFAC_DIRECT_ALWAYS);
}

TEST(libaio_loads_every_way) {
    write_model(in_folder("m"), tensors, TENSORS, 3);
    load_every_way(in_folder("m"), CFAC_LIBAIO, CFAC_DIRECT_ALWAYS);
}

TEST(shared_memory_loads_every_way) {
    write_model(in_shared_memory("m"), tensors, TENSORS, 3);
    load_every_way(in_shared_memory("m"), CFAC_AUTO, CFAC_DIRECT_AUTO);
    loading l = open_job(in_shared_memory("m"), 8192, (cfac_job_options){0});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    EQUAL(counters(l).direct_bytes, 0);
    end(l);
}

TEST(sealed_memory_files_are_mapped) {
    write_model(in_folder("m"), tensors, TENSORS, 3);
    int fd = memfd_create("m", MFD_ALLOW_SEALING | MFD_CLOEXEC), from = open(in_folder("m"), O_RDONLY);
    char block[4096], path[64];
    CHECK(fd >= 0 && from >= 0);
    for (ssize_t n; (n = read(from, block, sizeof block)) > 0;) EQUAL(write(fd, block, (size_t)n), n);
    EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    load_every_way(path, CFAC_AUTO, CFAC_DIRECT_AUTO);
    loading l = open_job(path, 8192, (cfac_job_options){.flags = CFAC_CHECKSUM});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    CHECK(counters(l).mapped_bytes > 300000);
    EQUAL(counters(l).requests, 0);
    end(l);
    close(from), close(fd);
}

TEST(reads_land_in_given_memory) {
    const char *path = in_folder("m");
    write_model(path, tensors, TENSORS, 1);
    for (uint32_t direct = 1; direct <= 2; direct++) {
        loading l = open_job(path, 8192, (cfac_job_options){.direct = direct, .ring = 2});
        size_t n;
        const cfac_item *items = cfac_plan_items(l.plan, &n);
        char *memory[TENSORS];
        for (uint32_t i = 0; i < n; i++) {
            memory[i] = malloc((size_t)items[i].length + 2);
            CHECK(memory[i] != NULL);
            memory[i][0] = memory[i][items[i].length + 1] = 77;
            EQUAL(cfac_job_into(l.job, i, memory[i] + 1, items[i].length, 0), 0);
        }
        EQUAL(cfac_job_into(l.job, 0, memory[0], items[0].length, 0), -EEXIST);
        FINE(cfac_job_start(l.job, &error));
        FINE(cfac_job_wait(l.job, 20000, &error));
        for (uint32_t i = 0; i < n; i++) {
            check_content(tensor_at(l, i)->name, memory[i] + 1, 0, items[i].length);
            EQUAL(memory[i][0], 77);
            EQUAL(memory[i][items[i].length + 1], 77);
        }
        cfac_counters c = counters(l);
        if (direct == CFAC_DIRECT_NEVER) EQUAL(c.copied_bytes, 0); /* buffered: all in place */
        EQUAL(c.in_place_bytes + c.copied_bytes, 361896);
        take_all(l, false);
        EQUAL(counters(l).placed, TENSORS);
        end(l);
        for (uint32_t i = 0; i < n; i++) free(memory[i]);
    }
}

TEST(direct_reads_land_in_congruent_memory) {
    const char *path = in_folder("m");
    const spec one = {"w", "U8", "[1000000]", 1000000};
    write_model(path, &one, 1, 5);
    loading l = open_job(path, 65536, (cfac_job_options){.direct = CFAC_DIRECT_ALWAYS, .ring = 2});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, true);
    cfac_counters c = counters(l);
    if (c.direct_bytes > 0) CHECK(c.in_place_bytes >= 14 * 65536); /* all but the edges */
    CHECK(c.copied_bytes <= 2 * 65536);
    end(l);
}

TEST(into_checks_its_arguments) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    loading l = open_job(in_folder("m"), 0, (cfac_job_options){0});
    char memory[4];
    EQUAL(cfac_job_into(l.job, 99, memory, 4, 0), -EINVAL);
    EQUAL(cfac_job_into(l.job, 0, memory, 3, 0), -EINVAL);
    EQUAL(cfac_job_into(l.job, 0, NULL, 4, 0), -EINVAL);
    EQUAL(cfac_job_into(l.job, 0, memory, 4, 1), -ENODEV);
    EQUAL(cfac_job_wait(l.job, 0, NULL), -EINVAL);
    cfac_result r;
    EQUAL(cfac_job_next(l.job, 0, &r, NULL), -EINVAL);
    FINE(cfac_job_start(l.job, &error));
    EQUAL(cfac_job_start(l.job, NULL), -EALREADY);
    EQUAL(cfac_job_wait(l.job, 0, NULL), -EINVAL); /* somebody must take the items */
    EQUAL(cfac_job_into(l.job, 0, memory, 4, 0), -EINVAL);
    end(l);
}

TEST(job_checks_its_options) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    loading l = open_job(in_folder("m"), 0, (cfac_job_options){0});
    cfac_job_options bad[] = {{.delivery = 2}, {.backend = CFAC_CUFILE}, {.direct = 3},
                              {.flags = 8}, {.depth = 99999}, {.threads = 999}};
    cfac_job *none;
    for (size_t i = 0; i < 6; i++) {
        bad[i].size = sizeof bad[i], bad[i].device = -1;
        EQUAL(cfac_job_open(l.plan, &bad[i], &none, NULL), -EINVAL);
    }
    bad[0] = (cfac_job_options){.size = 8};
    EQUAL(cfac_job_open(l.plan, &bad[0], &none, NULL), -EINVAL);
    end(l);
}

TEST(a_tensor_of_three_rings_loads) {
    const char *path = in_folder("m");
    const spec big[] = {{"first", "U8", "[10]", 10}, {"big", "BF16", "[100000]", 200000},
                        {"after", "U8", "[10]", 10}};
    write_model(path, big, 3, 1);
    for (uint32_t direct = 1; direct <= 2; direct++)
        for (uint32_t flags = 0; flags <= CFAC_VIEWS; flags++) {
            cfac_job_options o = {.flags = flags, .direct = direct, .ring = 4, .depth = 8};
            loading l = open_job(path, 16384, o); /* ring: 64 KiB */
            FINE(cfac_job_start(l.job, &error));
            take_all(l, true);
            CHECK(counters(l).buffers_peak <= 4);
            end(l);
        }
}

TEST(held_views_never_stop_the_reads) {
    write_many(in_folder("m"), 60);
    cfac_job_options o = {.flags = CFAC_VIEWS, .ring = 3};
    loading l = open_job(in_folder("m"), 8192, o);
    FINE(cfac_job_start(l.job, &error));
    take_all(l, true);
    cfac_counters c = counters(l);
    CHECK(c.views > 0 && c.owned > 20); /* two buffers held, then memory of its own */
    CHECK(c.buffers_peak <= 3);
    end(l);
}

TEST(released_views_reuse_the_ring) {
    write_many(in_folder("m"), 60);
    cfac_job_options o = {.flags = CFAC_VIEWS, .ring = 3, .depth = 1};
    loading l = open_job(in_folder("m"), 4096 * 16, o);
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    cfac_counters c = counters(l);
    size_t n;
    uint64_t inside = 0;
    const cfac_item *i = cfac_plan_items(l.plan, &n);
    for (size_t k = 0; k < n; k++) inside += i[k].chunks == 1;
    EQUAL(c.views, inside); /* none in memory of its own but what spans two chunks */
    CHECK(c.buffers_peak <= 3);
    end(l);
}

TEST(views_outlive_the_job) {
    write_many(in_folder("m"), 8);
    loading l = open_job(in_folder("m"), 1 << 20, (cfac_job_options){.flags = CFAC_VIEWS});
    FINE(cfac_job_start(l.job, &error));
    cfac_result r[8];
    for (int i = 0; i < 8; i++) EQUAL(cfac_job_next(l.job, 20000, &r[i], NULL), 1);
    cfac_buffer_retain(r[0].buffer);
    end(l);
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        CHECK(r[i].flags == CFAC_VIEW);
        check_content(name, r[i].data, 0, 4000);
        cfac_buffer_release(r[i].buffer);
    }
    check_content("t0", r[0].data, 0, 4000);
    cfac_buffer_release(r[0].buffer);
}

/* Wait until a value stays put: what a consumer that takes nothing leaves room for is read. */
static uint64_t settled_bytes(loading l) {
    uint64_t before = UINT64_MAX, now = counters(l).bytes;
    for (int same = 0; same < 5; same = before == now ? same + 1 : 0) {
        before = now;
        nap(20);
        now = counters(l).bytes;
    }
    return now;
}

TEST(a_slow_consumer_bounds_the_memory) {
    write_many(in_folder("m"), 400); /* 1.6 MB */
    for (uint32_t flags = 0; flags <= CFAC_VIEWS; flags++)
        for (uint32_t delivery = 0; delivery <= CFAC_CHUNKS; delivery++) {
            cfac_job_options o = {.flags = flags, .delivery = delivery, .ring = 4, .depth = 2};
            loading l = open_job(in_folder("m"), 16384, o);
            FINE(cfac_job_start(l.job, &error));
            /* ring 64 KiB, as much in memory of their own, and what is on the way */
            CHECK(settled_bytes(l) <= 3 * 65536);
            end(l);
        }
}

TEST(a_head_larger_than_the_window_goes_on) {
    const spec two[] = {{"one", "U8", "[500000]", 500000}, {"two", "U8", "[500000]", 500000}};
    write_model(in_folder("m"), two, 2, 1);
    loading l = open_job(in_folder("m"), 4096, (cfac_job_options){.ring = 2, .depth = 2});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, true);
    end(l);
}

TEST(chunks_come_in_file_order_and_can_be_held) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    loading l = open_job(in_folder("m"), 16384,
                         (cfac_job_options){.delivery = CFAC_CHUNKS, .ring = 3});
    FINE(cfac_job_start(l.job, &error));
    size_t n, pieces;
    const cfac_chunk *c = cfac_plan_chunks(l.plan, &n);
    const cfac_piece *x = cfac_plan_pieces(l.plan, &pieces);
    cfac_result held[64];
    for (uint32_t i = 0; i < n; i++) {
        EQUAL(cfac_job_next(l.job, 20000, &held[i], NULL), 1);
        EQUAL(held[i].index, i);
    }
    cfac_result none;
    EQUAL(cfac_job_next(l.job, 20000, &none, NULL), 0);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < c[i].pieces; k++) {
            const cfac_piece *p = &x[c[i].first_piece + k];
            check_content(tensor_at(l, p->item)->name, (char *)held[i].data + p->offset - c[i].origin,
                          p->item_offset, p->length);
        }
        cfac_buffer_release(held[i].buffer);
    }
    end(l);
}

TEST(ranks_read_segments_and_place_the_whole) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    const char *path = in_folder("m");
    for (uint32_t direct = 1; direct <= 2; direct++) {
        enum { RANKS = 3 };
        loading l[RANKS];
        char *memory[TENSORS];
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            l[rank] = start_plan(&path, 1, (cfac_plan_options){32768, RANKS, rank},
                                 (cfac_job_options){.delivery = CFAC_CHUNKS, .ring = 2,
                                                    .direct = direct, .flags = CFAC_CHECKSUM});
        }
        size_t n, items;
        const cfac_item *item = cfac_plan_items(l[0].plan, &items);
        for (uint32_t i = 0; i < items; i++) {
            memory[i] = malloc((size_t)item[i].length + 1);
            EQUAL(cfac_job_into(l[0].job, i, memory[i], item[i].length, 0), 0);
        }
        const cfac_chunk *c = cfac_plan_chunks(l[0].plan, &n);
        for (uint32_t rank = 0; rank < RANKS; rank++) FINE(cfac_job_start(l[rank].job, &error));
        for (uint32_t i = 0; i < n; i++) {
            cfac_result r[RANKS];
            for (uint32_t rank = 0; rank < RANKS; rank++) {
                size_t same;
                const cfac_chunk *own = &cfac_plan_chunks(l[rank].plan, &same)[i];
                EQUAL(cfac_job_next(l[rank].job, 20000, &r[rank], NULL), 1);
                /* the gathering: every rank's segment at its place */
                if (rank > 0)
                    memcpy((char *)r[0].data + c[i].segment * rank,
                           (char *)r[rank].data + c[i].segment * rank, (size_t)c[i].segment);
                uint32_t crc;
                EQUAL(cfac_job_checksum(l[rank].job, i, &crc), 0);
                EQUAL(crc, cfac_crc32c(0, (char *)r[rank].data + own->read_offset - own->origin,
                                       (size_t)own->read_length));
            }
            FINE(cfac_job_place(l[0].job, i, NULL, &error));
            EQUAL(cfac_job_place(l[0].job, i, NULL, NULL), -EINVAL);
            for (uint32_t rank = 0; rank < RANKS; rank++) cfac_buffer_release(r[rank].buffer);
        }
        FINE(cfac_job_wait(l[0].job, 20000, &error));
        for (uint32_t i = 0; i < items; i++) {
            check_content(tensor_at(l[0], i)->name, memory[i], 0, item[i].length);
            free(memory[i]);
        }
        for (uint32_t rank = 0; rank < RANKS; rank++) end(l[rank]);
    }
}

static bool resident(const char *path) { /* as a read that must not wait tells it */
    char byte;
    struct iovec v = {&byte, 1};
    int fd = open(path, O_RDONLY);
    bool there = preadv2(fd, &v, 1, 400000, RWF_NOWAIT) == 1;
    close(fd);
    return there;
}

/* Read a file into the page cache, for the rest of this process: a machine may be one that pages
 * out all the time (DAMON), and does not spare what was read a moment ago. */
static void keep_resident(const char *path) {
    struct stat s;
    int fd = open(path, O_RDONLY);
    EQUAL(fstat(fd, &s), 0);
    void *map = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    /* 800 KB: within what Linux allows by default. The sanitizers' mlock does nothing. */
    EQUAL(syscall(SYS_mlock, map, (size_t)s.st_size), 0);
    close(fd);
}

TEST(residency_decides_between_direct_and_buffered) {
    const char *path = in_folder("m");
    write_many(path, 200);
    int fd = open(path, O_RDONLY | O_DIRECT);
    evict(path);
    bool possible = fd >= 0 && !resident(path);
    if (fd >= 0) close(fd);
    evict(path); /* asking has started a readahead */
    for (int warm = 0; warm < 2; warm++) {
        loading l = open_job(path, 65536, (cfac_job_options){0});
        FINE(cfac_job_start(l.job, &error));
        take_all(l, false);
        cfac_counters c = counters(l);
        EQUAL(c.direct_bytes + c.buffered_bytes, c.bytes);
        if (warm)
            EQUAL(c.direct_bytes, 0);
        else if (possible)
            CHECK(c.direct_bytes >= 700000);
        end(l);
        if (!warm) keep_resident(path);
    }
}

TEST(direct_reads_go_by_the_ring_unless_they_land_in_huge_pages) {
    const char *path = in_folder("m");
    enum { MB = 1 << 20 };
    const spec one = {"w", "U8", "[16777216]", 16 * MB};
    write_model(path, &one, 1, 7);
    for (int huge = 0; huge < 2; huge++) {
        loading l = open_job(path, 4 * MB, (cfac_job_options){.backend = CFAC_PREAD});
        char *all = mmap(NULL, 20 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(all != MAP_FAILED);
        char *memory = all + 2 * MB - (uintptr_t)all % (2 * MB);
        memory += tensor_at(l, 0)->begin % 4096; /* so that O_DIRECT could read to it */
        madvise(all, 20 * MB, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        memset(all, 1, 20 * MB);
        bool good = cfac__in_huge_pages(memory, 16 * MB);
        if (!huge) CHECK(!good);
        EQUAL(cfac_job_into(l.job, 0, memory, 16 * MB, 0), 0);
        evict(path);
        FINE(cfac_job_start(l.job, &error));
        FINE(cfac_job_wait(l.job, 20000, &error));
        check_content("w", memory, 0, 16 * MB);
        cfac_counters c = counters(l);
        uint64_t edges = 8 * MB; /* chunks that begin or end in the middle of a page */
        if (good)
            CHECK(c.copied_bytes <= edges);
        else
            CHECK(c.in_place_bytes <= c.buffered_bytes);
        EQUAL(c.in_place_bytes + c.copied_bytes, 16 * MB);
        take_all(l, false);
        end(l);
        munmap(all, 20 * MB);
    }
}

TEST(checksums_are_of_the_wanted_bytes) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    for (uint32_t direct = 1; direct <= 2; direct++)
        for (uint32_t views = 0; views <= CFAC_VIEWS; views++) {
            loading l = open_job(in_folder("m"), 8192,
                                 (cfac_job_options){.flags = CFAC_CHECKSUM | views, .direct = direct});
            FINE(cfac_job_start(l.job, &error));
            take_all(l, true);
            size_t n, pieces;
            const cfac_chunk *c = cfac_plan_chunks(l.plan, &n);
            const cfac_piece *x = cfac_plan_pieces(l.plan, &pieces);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t crc = 0, got;
                for (uint32_t k = 0; k < c[i].pieces; k++) {
                    const cfac_piece *p = &x[c[i].first_piece + k];
                    for (uint64_t b = 0; b < p->length; b++) {
                        unsigned char byte = content(tensor_at(l, p->item)->name, p->item_offset + b);
                        crc = cfac_crc32c(crc, &byte, 1);
                    }
                }
                EQUAL(cfac_job_checksum(l.job, i, &got), 0);
                EQUAL(got, crc);
            }
            end(l);
        }
}

TEST(dropped_memory_is_used_again_while_the_job_goes_on) {
    enum { MANY = 12 };
    static const char *const names[MANY] = {"a", "b", "c", "d", "e", "f",
                                            "g", "h", "i", "j", "k", "l"};
    spec large[MANY];
    for (int i = 0; i < MANY; i++) large[i] = (spec){names[i], "U8", "[2097152]", 2097152};
    write_model(in_folder("m"), large, MANY, 1);
    for (int hold = 0; hold < 2; hold++) {
        loading l = open_job(in_folder("m"), 1 << 19, (cfac_job_options){.ring = 8});
        FINE(cfac_job_start(l.job, &error));
        cfac_result r[MANY];
        int places = 0;
        for (int i = 0; i < MANY; i++) {
            EQUAL(cfac_job_next(l.job, 10000, &r[i], NULL), 1);
            EQUAL(r[i].flags, CFAC_OWNED);
            check_item(l, &r[i]);
            int k = 0; /* where an earlier one was, in a page or another of it? */
            while ((uintptr_t)r[k].data / 65536 != (uintptr_t)r[i].data / 65536) k++;
            places += k == i;
            if (!hold) cfac_buffer_release(r[i].buffer);
        }
        if (hold)
            EQUAL(places, MANY);
        else
            CHECK(places < MANY);
        cfac_job_close(l.job);
        for (int i = 0; hold && i < MANY; i++) {
            check_content(names[i], r[i].data, 0, r[i].length);
            cfac_buffer_release(r[i].buffer);
        }
        l.job = NULL;
        end(l);
    }
}

TEST(a_chunk_tells_how_it_was_read) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    for (uint32_t direct = 1; direct <= 2; direct++) {
        loading l = open_job(in_folder("m"), 8192,
                             (cfac_job_options){.backend = CFAC_PREAD, .direct = direct});
        uint32_t backend, flags;
        EQUAL(cfac_job_path(l.job, 0, &backend, &flags), -ENODATA);
        FINE(cfac_job_start(l.job, &error));
        take_all(l, false);
        size_t n;
        cfac_plan_chunks(l.plan, &n);
        uint64_t read = 0;
        for (uint32_t i = 0; i < n; i++) {
            EQUAL(cfac_job_path(l.job, i, &backend, &flags), 0);
            EQUAL(backend, CFAC_PREAD);
            read += (flags & CFAC_PATH_DIRECT) != 0;
            if (direct == 1) EQUAL(flags, CFAC_PATH_IN_PLACE);
        }
        EQUAL(read, direct == 2 && counters(l).direct_bytes > 0 ? n : 0);
        EQUAL(cfac_job_path(l.job, (uint32_t)n, &backend, &flags), -EINVAL);
        end(l);
    }
}

TEST(events_follow_the_states) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    loading l = open_job(in_folder("m"), 8192,
                         (cfac_job_options){.flags = CFAC_EVENTS | CFAC_VIEWS, .ring = 3});
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    size_t chunks;
    cfac_plan_chunks(l.plan, &chunks);
    int state[64] = {0}, loaded = 0, destroyed = 0;
    cfac_event e[7];
    uint64_t last = 0;
    for (int64_t n; (n = cfac_job_events(l.job, e, 7)) > 0;)
        for (int64_t i = 0; i < n; i++) {
            CHECK(e[i].ns >= last);
            last = e[i].ns;
            if (e[i].kind == CFAC_ITEM_LOADED) {
                loaded++;
                continue;
            }
            EQUAL(e[i].kind, state[e[i].index]);
            state[e[i].index]++;
            destroyed += e[i].kind == CFAC_CHUNK_DESTROYED;
        }
    EQUAL(loaded, TENSORS);
    EQUAL(destroyed, chunks);
    end(l);
}

TEST(many_files_need_few_descriptors) {
    enum { FILES = 60 };
    static char path[FILES][300];
    static const char *paths[FILES];
    static char names[FILES][16];
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof names[i], "w%d", i);
        snprintf(path[i], sizeof path[i], "%s", in_folder(names[i]));
        paths[i] = path[i];
        const spec one = {names[i], "U8", "[9000]", 9000};
        write_model(path[i], &one, 1, 0);
    }
    struct rlimit before, few;
    EQUAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)count_descriptors() + 3 + 5; /* eventfd, ring, and five files */
    loading l = start_plan(paths, FILES, (cfac_plan_options){.chunk_size = 4096},
                           (cfac_job_options){.depth = 32, .threads = 4, .direct = CFAC_DIRECT_NEVER});
    EQUAL(setrlimit(RLIMIT_NOFILE, &few), 0);
    FINE(cfac_job_start(l.job, &error));
    take_all(l, false);
    EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    end(l);
}

#ifndef __SANITIZE_THREAD__ /* its shadow of 2 GiB would be 8 GiB */
TEST(a_sparse_tensor_over_2_gib_is_read_in_steps) {
    const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2148532224],\"data_offsets\":[0,2148532224]}}";
    unsigned char bytes[128] = {(unsigned char)strlen(header)};
    memcpy(bytes + 8, header, strlen(header));
    const char *path = in_shared_memory("sparse");
    write_file(path, bytes, 8 + strlen(header));
    EQUAL(truncate(path, (off_t)(8 + strlen(header) + 2148532224)), 0);
    int fd = open(path, O_WRONLY);
    EQUAL(pwrite(fd, "!", 1, (off_t)(8 + strlen(header) + 2148532223)), 1);
    close(fd);
    loading l = open_job(path, (uint64_t)4 << 30, (cfac_job_options){0});
    /* 64 MiB of memory, seen 33 times: the last bytes are what counts */
    enum { PART = 64 << 20 };
    int shared = memfd_create("part", MFD_CLOEXEC);
    EQUAL(ftruncate(shared, PART), 0);
    char *memory = mmap(NULL, (size_t)PART * 33, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t i = 0; i < 33; i++)
        CHECK(mmap(memory + PART * i, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shared,
                   0) != MAP_FAILED);
    close(shared);
    EQUAL(cfac_job_into(l.job, 0, memory, 2148532224, 0), 0);
    FINE(cfac_job_start(l.job, &error));
    FINE(cfac_job_wait(l.job, 60000, &error));
    EQUAL(memory[2148532223], '!');
    CHECK(counters(l).requests >= 2);
    end(l);
    munmap(memory, (size_t)PART * 33);
}
#endif
