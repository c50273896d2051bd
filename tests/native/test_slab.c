/* Slabs: many small items in one piece of memory, each of which goes by itself. */
#define _GNU_SOURCE
#include "loading.h"

#include <errno.h>
#include <sys/mman.h>

enum { ITEMS = 40, SIZE = 50000, CHUNK = 1 << 20 }; /* 2 MB: two chunks, an item in both */

static void write_items(const char *path) {
    static char names[ITEMS][16];
    static spec made[ITEMS];
    for (int i = 0; i < ITEMS; i++) {
        snprintf(names[i], sizeof names[i], "item%d", i);
        made[i] = (spec){names[i], "U8", "[50000]", SIZE};
    }
    write_model(path, made, ITEMS, 1);
}

static uint32_t take(loading l, cfac_result *r) {
    uint32_t n = 0;
    int got;
    while ((got = cfac_job_next_many(l.job, 20000, r + n, 7, NULL)) > 0) {
        CHECK(got <= 7);
        for (int i = 0; i < got; i++, n++) {
            EQUAL(r[n].index, n);
            check_item(l, &r[n]);
        }
    }
    EQUAL(got, 0);
    return n;
}

/* Whether a page of this process has memory. */
static bool present(const char *page) {
    unsigned char state = 0;
    return mincore((void *)(uintptr_t)page, 4096, &state) == 0 && state & 1;
}

static char *inner_page(const cfac_result *r) {
    return (char *)(((uintptr_t)r->data + 8191) & ~(uintptr_t)4095);
}

TEST(small_items_lie_as_in_the_file_and_are_read_in_place) {
    const char *path = in_folder("m");
    write_items(path);
    for (uint32_t direct = CFAC_DIRECT_NEVER; direct <= CFAC_DIRECT_ALWAYS; direct++)
        for (uint32_t backend = CFAC_IO_URING; backend <= CFAC_PREAD; backend++) {
            cfac_job_options o = {.direct = direct, .backend = backend, .flags = CFAC_CHECKSUM};
            loading l = open_job(path, CHUNK, o);
            FINE(cfac_job_start(l.job, &error));
            cfac_result r[ITEMS];
            EQUAL(take(l, r), ITEMS);
            for (int i = 1; i < 20; i++) EQUAL((char *)r[i].data - (char *)r[i - 1].data, SIZE);
            cfac_counters c = counters(l);
            EQUAL(c.in_place_bytes + c.copied_bytes, ITEMS * SIZE);
            CHECK(c.copied_bytes <= SIZE); /* of the item in both chunks, at most */
            if (direct == CFAC_DIRECT_NEVER) EQUAL(c.copied_bytes, 0);
            end(l);
            for (int i = 0; i < ITEMS; i++) cfac_buffer_release(r[i].buffer);
        }
}

TEST(an_item_that_is_dropped_gives_its_pages_back_when_the_job_is_over) {
    write_items(in_folder("m"));
    for (int late = 0; late < 2; late++)
        for (uint32_t direct = CFAC_DIRECT_NEVER; direct <= CFAC_DIRECT_ALWAYS; direct++) {
            loading l = open_job(in_folder("m"), CHUNK, (cfac_job_options){.direct = direct});
            FINE(cfac_job_start(l.job, &error));
            cfac_result r[ITEMS];
            EQUAL(take(l, r), ITEMS);
            for (int i = 0; i < ITEMS; i++) CHECK(present(inner_page(&r[i])));
            for (int i = 0; !late && i < ITEMS; i++)
                if (i % 20 != 5) cfac_buffer_release(r[i].buffer);
            cfac_job_close(l.job);
            for (int i = 0; late && i < ITEMS; i++)
                if (i % 20 != 5) cfac_buffer_release(r[i].buffer);
            for (int i = 0; i < ITEMS; i++) {
                if (i == 20) continue; /* in both chunks, or near them: memory of its own */
                EQUAL(present(inner_page(&r[i])), i % 20 == 5);
            }
            for (int i = 5; i < ITEMS; i += 20) { /* those that are held are whole */
                check_item(l, &r[i]);
                cfac_buffer_release(r[i].buffer);
            }
            l.job = NULL;
            end(l);
        }
}

TEST(dropped_items_of_held_slabs_never_keep_more_than_a_ring) {
    write_items(in_folder("m"));
    cfac_job_options o = {.ring = 2, .direct = CFAC_DIRECT_NEVER};
    loading l = open_job(in_folder("m"), 512 << 10, o);
    FINE(cfac_job_start(l.job, &error));
    cfac_result r[ITEMS];
    EQUAL(take(l, r), ITEMS);
    int kept = 0;
    for (int i = 0; i < ITEMS; i++)
        if (i % 10 != 5) cfac_buffer_release(r[i].buffer);
    for (int i = 0; i < ITEMS; i++)
        kept += i % 10 != 5 && present(inner_page(&r[i]));
    CHECK(kept <= (2 * (512 << 10)) / SIZE + 1);
    CHECK(kept < 36);
    for (int i = 5; i < ITEMS; i += 10) {
        check_item(l, &r[i]);
        cfac_buffer_release(r[i].buffer);
    }
    end(l);
}

TEST(many_results_come_at_a_time_and_no_more_than_a_buffer_of_memory) {
    write_items(in_folder("m"));
    loading l = open_job(in_folder("m"), 256 << 10, (cfac_job_options){.ring = 16});
    FINE(cfac_job_start(l.job, &error));
    cfac_result r[ITEMS];
    uint32_t n = 0;
    int got, most = 0;
    do {
        nap(5);
        got = cfac_job_next_many(l.job, 20000, r, ITEMS, NULL);
        CHECK(got >= 0);
        for (int i = 0; i < got; i++) {
            EQUAL(r[i].index, n++);
            cfac_buffer_release(r[i].buffer);
        }
        if (got > most) most = got;
    } while (got > 0);
    EQUAL(n, ITEMS);
    CHECK(most >= 2);
    CHECK(most <= (256 << 10) / SIZE + 1);
    end(l);
}

static char *memory[ITEMS];

TEST(many_destinations_are_given_at_once) {
    write_items(in_folder("m"));
    loading l = open_job(in_folder("m"), CHUNK, (cfac_job_options){0});
    cfac_target t[ITEMS];
    for (uint32_t i = 0; i < ITEMS; i++) {
        memory[i] = malloc(SIZE);
        t[i] = (cfac_target){i, 0, memory[i], SIZE};
    }
    t[3].length--;
    EQUAL(cfac_job_into_many(l.job, t, ITEMS), -EINVAL);
    t[3].length++;
    EQUAL(cfac_job_into_many(l.job, t, 1), -EEXIST); /* those before it are given */
    EQUAL(cfac_job_into_many(l.job, t + 3, ITEMS - 3), 0);
    FINE(cfac_job_start(l.job, &error));
    cfac_result r[ITEMS];
    EQUAL(cfac_job_wait(l.job, 20000, NULL), 0);
    EQUAL(cfac_job_next_many(l.job, 20000, r, ITEMS, NULL), ITEMS); /* none is the job's memory */
    for (uint32_t i = 0; i < ITEMS; i++) {
        EQUAL(r[i].flags, CFAC_PLACED);
        check_item(l, &r[i]);
    }
    EQUAL(cfac_job_next_many(l.job, 20000, r, ITEMS, NULL), 0);
    end(l);
    for (uint32_t i = 0; i < ITEMS; i++) free(memory[i]);
}

static cfac_result inherited[ITEMS];

static void let_go(void) {
    for (int i = 0; i < ITEMS; i++) {
        check_content(i == 5 ? "item5" : "item6", inherited[i == 5 ? 5 : 6].data, 0, SIZE);
        if (i != 5 && i != 6) cfac_buffer_release(inherited[i].buffer);
    }
    cfac_buffer_release(inherited[5].buffer);
    cfac_buffer_release(inherited[6].buffer);
}

TEST(a_forked_child_can_let_go_of_slabs) {
    write_items(in_folder("m"));
    loading l = open_job(in_folder("m"), CHUNK, (cfac_job_options){0});
    FINE(cfac_job_start(l.job, &error));
    EQUAL(take(l, inherited), ITEMS);
    EQUAL(in_child(let_go), 0);
    for (int i = 0; i < ITEMS; i++) check_item(l, &inherited[i]);
    end(l);
    for (int i = 0; i < ITEMS; i++) cfac_buffer_release(inherited[i].buffer);
}
