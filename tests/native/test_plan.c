/* Models and plans: files, chunks, pieces, ranks, and the layout check. */
#define _GNU_SOURCE
#include "runner.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static cfac_model *open_model(const char *path) {
    cfac_model *m;
    FINE(cfac_model_open(&path, 1, 0, &m, &error));
    return m;
}

static const spec some[] = {
    {"a", "U8", "[5000]", 5000}, {"empty", "F32", "[0,3]", 0}, {"b", "BF16", "[8000]", 16000},
    {"c", "F32", "[]", 4},       {"d", "U8", "[100]", 100},    {"last", "I64", "[3,0]", 0},
};

static void check(const cfac_plan *p) {
    size_t items, chunks, pieces;
    const cfac_item *i = cfac_plan_items(p, &items);
    const cfac_chunk *c = cfac_plan_chunks(p, &chunks);
    const cfac_piece *x = cfac_plan_pieces(p, &pieces);
    FINE(cfac_layout_check(i, items, c, chunks, x, pieces, &error));
    for (size_t k = 0; k < chunks; k++) {
        EQUAL(c[k].origin % 4096, 0);
        CHECK(c[k].offset + c[k].length - c[k].origin <= cfac_plan_buffer_size(p));
    }
}

TEST(plan_cuts_at_a_grid) {
    write_model(in_folder("m"), some, 6, 1);
    cfac_model *m = open_model(in_folder("m"));
    cfac_plan_options o = {.chunk_size = 8192};
    cfac_plan *p;
    FINE(cfac_plan_make(m, NULL, 0, &o, &p, &error));
    check(p);
    size_t n, items;
    const cfac_chunk *c = cfac_plan_chunks(p, &n);
    EQUAL(n, 3); /* 21,104 bytes and the header */
    EQUAL(c[0].origin, 0);
    EQUAL(c[1].offset, 8192);
    EQUAL(c[1].length, 8192);
    const cfac_item *i = cfac_plan_items(p, &items);
    EQUAL(items, 6);
    EQUAL(i[1].chunks, 0);
    EQUAL(i[2].chunks, 3);
    EQUAL(i[5].chunks, 0);
    cfac_plan_free(p);
    cfac_model_free(m);
}

TEST(plan_takes_ranges_in_any_order) {
    write_model(in_folder("m"), some, 6, 1);
    cfac_model *m = open_model(in_folder("m"));
    cfac_item wanted[] = {{.tensor = 4, .begin = 10, .length = 5},
                          {.tensor = 0, .begin = 4999, .length = 1},
                          {.tensor = 5}};
    cfac_plan_options o = {.chunk_size = 4096};
    cfac_plan *p;
    FINE(cfac_plan_make(m, wanted, 3, &o, &p, &error));
    check(p);
    size_t n;
    const cfac_item *i = cfac_plan_items(p, &n);
    EQUAL(n, 3);
    EQUAL(i[0].tensor, 0);
    EQUAL(i[0].begin, 4999);
    EQUAL(i[1].tensor, 4);
    const cfac_chunk *c = cfac_plan_chunks(p, &n);
    EQUAL(n, 2);
    EQUAL(c[0].length, 1);
    EQUAL(c[1].length, 5);
    cfac_plan_free(p);
    wanted[2] = wanted[0];
    cfac_error e;
    EQUAL(cfac_plan_make(m, wanted, 3, &o, &p, &e), -EINVAL);
    HAS(e.message, "twice");
    CHECK(strcmp(e.tensor, "d") == 0);
    wanted[2] = (cfac_item){.tensor = 3, .begin = 1, .length = 4};
    EQUAL(cfac_plan_make(m, wanted, 3, &o, &p, &e), -EINVAL);
    wanted[2] = (cfac_item){.tensor = 6};
    EQUAL(cfac_plan_make(m, wanted, 3, &o, &p, &e), -EINVAL);
    cfac_model_free(m);
}

TEST(plan_shares_chunks_among_ranks) {
    write_model(in_folder("m"), some, 6, 1);
    cfac_model *m = open_model(in_folder("m"));
    for (uint32_t ranks = 2; ranks < 6; ranks++) {
        unsigned char *seen = calloc(1, 30000);
        CHECK(seen != NULL);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            cfac_plan_options o = {.chunk_size = 16384, .ranks = ranks, .rank = rank};
            cfac_plan *p;
            FINE(cfac_plan_make(m, NULL, 0, &o, &p, &error));
            check(p);
            size_t n;
            const cfac_chunk *c = cfac_plan_chunks(p, &n);
            for (size_t k = 0; k < n; k++) {
                CHECK(c[k].segment * ranks <= cfac_plan_buffer_size(p));
                EQUAL(c[k].segment % 4096, 0);
                for (uint64_t b = 0; b < c[k].read_length; b++) {
                    uint64_t at = c[k].read_offset + b;
                    EQUAL((at - c[k].origin) / c[k].segment, rank);
                    seen[at]++;
                }
            }
            cfac_plan_free(p);
        }
        size_t n;
        const cfac_tensor *t = cfac_model_tensors(m, &n);
        for (uint64_t at = t[0].begin; at < t[n - 1].end; at++) EQUAL(seen[at], 1);
        free(seen);
    }
    cfac_model_free(m);
}

TEST(plan_refuses_bad_options) {
    write_model(in_folder("m"), some, 6, 1);
    cfac_model *m = open_model(in_folder("m"));
    const cfac_plan_options bad[] = {{.chunk_size = 1000}, {.ranks = 2, .rank = 2}, {.rank = 1},
                                     {.chunk_size = UINT64_MAX - 4095}};
    cfac_plan *p;
    for (size_t i = 0; i < 4; i++) EQUAL(cfac_plan_make(m, NULL, 0, &bad[i], &p, NULL), -EINVAL);
    cfac_model_free(m);
}

TEST(plan_refuses_too_many_chunks) {
    const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1099511627776],\"data_offsets\":[0,1099511627776]}}";
    unsigned char bytes[128] = {(unsigned char)strlen(header)};
    memcpy(bytes + 8, header, strlen(header));
    const char *path = in_folder("sparse");
    write_file(path, bytes, 8 + strlen(header));
    EQUAL(truncate(path, (off_t)(8 + strlen(header) + (1ull << 40))), 0);
    cfac_model *m = open_model(path);
    cfac_plan_options o = {.chunk_size = 4096};
    cfac_plan *p;
    cfac_error e;
    EQUAL(cfac_plan_make(m, NULL, 0, &o, &p, &e), -EFBIG);
    EQUAL(e.code, CFAC_LAYOUT);
    FINE(cfac_plan_make(m, NULL, 0, NULL, &p, &error));
    check(p);
    cfac_plan_free(p);
    cfac_model_free(m);
}

TEST(layout_check_has_teeth) {
    write_model(in_folder("m"), some, 6, 1);
    cfac_model *m = open_model(in_folder("m"));
    cfac_plan_options o = {.chunk_size = 4096};
    cfac_plan *p;
    FINE(cfac_plan_make(m, NULL, 0, &o, &p, &error));
    size_t items, chunks, pieces;
    const cfac_item *i = cfac_plan_items(p, &items);
    const cfac_chunk *c = cfac_plan_chunks(p, &chunks);
    const cfac_piece *x = cfac_plan_pieces(p, &pieces);
    for (size_t k = 0; k < pieces; k++) {
        for (int what = 0; what < 6; what++) {
            cfac_piece copy[64];
            CHECK(pieces < 64);
            memcpy(copy, x, pieces * sizeof *x);
            cfac_piece *y = &copy[k];
            if (what == 0) y->length++;
            if (what == 1) y->item_offset++;
            if (what == 2) y->offset += 4096;
            if (what == 3) y->chunk++;
            if (what == 4) y->item++;
            if (what == 5) y->length = 0;
            cfac_error e;
            int r = cfac_layout_check(i, items, c, chunks, copy, pieces, &e);
            if (r != -EINVAL || e.code != CFAC_LAYOUT)
                failed(__FILE__, __LINE__, "piece %zu, change %d: %d", k, what, r);
        }
    }
    EQUAL(cfac_layout_check(i, items, c, chunks, x, pieces - 1, NULL), -EINVAL);
    EQUAL(cfac_layout_check(i, items - 2, c, chunks, x, pieces, NULL), -EINVAL);
    cfac_plan_free(p);
    cfac_model_free(m);
}

TEST(model_finds_names_and_reads) {
    write_model(in_folder("m"), some, 6, 3);
    cfac_model *m = open_model(in_folder("m"));
    EQUAL(cfac_model_find(m, "b", 1), 2);
    EQUAL(cfac_model_find(m, "bb", 2), -ENOENT);
    EQUAL(cfac_model_find(m, "", 0), -ENOENT);
    EQUAL(cfac_model_find(m, "zz", 2), -ENOENT);
    char bytes[64];
    FINE(cfac_model_read(m, 2, 1001, 64, bytes, &error));
    check_content("b", bytes, 1001, 64);
    EQUAL(cfac_model_read(m, 2, 16000, 1, bytes, NULL), -EINVAL);
    EQUAL(cfac_model_read(m, 9, 0, 1, bytes, NULL), -EINVAL);
    EQUAL(truncate(in_folder("m"), 9000), 0);
    cfac_error e;
    EQUAL(cfac_model_read(m, 2, 0, 64, bytes, &e), -ESTALE);
    EQUAL(e.code, CFAC_CHANGED);
    cfac_model_free(m);
}

TEST(model_refuses_one_name_in_two_files) {
    write_model(in_folder("one"), some, 1, 0);
    write_model(in_folder("two"), some, 2, 0);
    const char *paths[] = {in_folder("one"), in_folder("two")};
    cfac_model *m;
    cfac_error e;
    EQUAL(cfac_model_open(paths, 2, 0, &m, &e), -EBADMSG);
    EQUAL(e.code, CFAC_DUPLICATE_TENSOR);
    HAS(e.message, "/one and ");
    HAS(e.message, "/two");
    HAS(e.message, "'a'");
    FINE(cfac_model_open(paths, 2, CFAC_ALLOW_DUPLICATES, &m, &error));
    EQUAL(cfac_model_find(m, "a", 1), 0);
    cfac_model_free(m);
}

TEST(model_refuses_what_is_no_file) {
    EQUAL(mkfifo(in_folder("fifo"), 0600), 0);
    EQUAL(symlink("nowhere", in_folder("dangling")), 0);
    const struct {
        const char *name;
        int error, code;
    } cases[] = {{"fifo", -EINVAL, CFAC_NOT_REGULAR}, {".", -EISDIR, CFAC_NOT_REGULAR},
                 {"missing", -ENOENT, CFAC_SYSTEM},   {"dangling", -ENOENT, CFAC_SYSTEM}};
    for (size_t i = 0; i < 4; i++) {
        const char *path = in_folder(cases[i].name);
        cfac_model *m;
        cfac_error e;
        EQUAL(cfac_model_open(&path, 1, 0, &m, &e), cases[i].error);
        EQUAL(e.code, cases[i].code);
        HAS(e.message, cases[i].name);
    }
}

TEST(model_keeps_relative_paths_after_chdir) {
    write_model(in_folder("m"), some, 6, 3);
    EQUAL(chdir(folder()), 0);
    cfac_model *m = open_model("m");
    EQUAL(chdir("/"), 0);
    char bytes[4];
    FINE(cfac_model_read(m, 3, 0, 4, bytes, &error));
    cfac_model_free(m);
}

TEST(model_leaves_no_descriptor_open) {
    write_model(in_folder("m"), some, 6, 3);
    int before = count_descriptors();
    cfac_model *m = open_model(in_folder("m"));
    EQUAL(count_descriptors(), before);
    const char *missing = in_folder("missing");
    cfac_model *none;
    CHECK(cfac_model_open(&missing, 1, 0, &none, NULL) < 0);
    EQUAL(count_descriptors(), before);
    cfac_model_free(m);
}

TEST(model_of_no_files_is_empty) {
    cfac_model *m;
    cfac_plan *p;
    size_t n;
    FINE(cfac_model_open(NULL, 0, 0, &m, &error));
    FINE(cfac_plan_make(m, NULL, 0, NULL, &p, &error));
    cfac_model_free(m);
    cfac_plan_chunks(p, &n);
    EQUAL(n, 0);
    check(p);
    cfac_plan_free(p);
}

uint32_t cfac__crc32c_by_table(uint32_t crc, const void *data, size_t length);

TEST(crc32c_is_castagnolis) {
    EQUAL(cfac_crc32c(0, "123456789", 9), 0xE3069283);
    unsigned char bytes[999];
    for (int i = 0; i < 999; i++) bytes[i] = content("x", (uint64_t)i);
    for (size_t n = 0; n < 999; n += 37) {
        uint32_t whole = cfac_crc32c(0, bytes, 999);
        EQUAL(cfac_crc32c(cfac_crc32c(0, bytes, n), bytes + n, 999 - n), whole);
        EQUAL(cfac__crc32c_by_table(cfac__crc32c_by_table(0, bytes, n), bytes + n, 999 - n), whole);
    }
}

static void put(const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    for (char *c = path + 1; *c; c++) {
        if (*c != '/') continue;
        *c = 0;
        mkdir(path, 0700);
        *c = '/';
    }
    write_file(path, text, strlen(text));
}

TEST(memory_is_bounded_by_the_cgroup) {
    put("proc/meminfo", "MemTotal: 99 kB\nMemAvailable:  2000 kB\n");
    EQUAL(cfac_memory_left(folder()), 2000 * 1024);
    put("proc/self/cgroup", "4:cpu,memory:/a/b\n0::/x/y\n");
    put("sys/fs/cgroup/x/y/memory.max", "max\n");
    put("sys/fs/cgroup/x/y/memory.current", "1000\n");
    EQUAL(cfac_memory_left(folder()), 2000 * 1024);
    put("sys/fs/cgroup/x/memory.max", "900000\n"); /* of the group above */
    put("sys/fs/cgroup/x/memory.current", "100000\n");
    EQUAL(cfac_memory_left(folder()), 800000);
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "700000\n");
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1\n");
    EQUAL(cfac_memory_left(folder()), 699999);
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "800000\n");
    EQUAL(cfac_memory_left(folder()), 0);
    CHECK(cfac_memory_left(NULL) > 0);
    CHECK(cfac_cores() >= 1);
}

/* ---- destinations ---- */

typedef struct made { /* DLTensor */
    void *data;
    int32_t device_type, device, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} made;

static int look(void *object, void *out) { /* the functions of a library whose objects are such */
    if (object == NULL) return -1;
    *(made *)out = *(made *)object;
    return 0;
}

static const spec two[] = {{"a", "F32", "[2,3]", 24}, {"b", "BF16", "[4]", 8}};

/* How many of the two tensors fit, with the second as given. */
static int64_t fitting(const made *second) {
    write_model(in_folder("two"), two, 2, 0);
    cfac_model *m = open_model(in_folder("two"));
    float memory[6];
    int64_t shape[] = {2, 3}, strides[] = {3, 1};
    made first = {memory, 1, 0, 2, 2, 32, 1, shape, strides, 0}, copy = {0};
    if (second != NULL) copy = *second;
    if (second != NULL && copy.data == NULL) copy.data = memory; /* the same memory */
    void *objects[] = {&first, second ? &copy : NULL};
    cfac_target out[2];
    int64_t n = cfac_model_targets(m, NULL, objects, 2, look, out);
    if (n > 0) {
        CHECK(out[0].data == memory);
        EQUAL(out[0].length, 24);
    }
    if (n == 2) {
        CHECK(out[1].data == (char *)copy.data + copy.byte_offset);
        EQUAL(out[1].item, 1);
        EQUAL(out[1].length, 8);
        EQUAL(out[1].device, 0);
    }
    const uint32_t other[] = {1, 7}; /* no tensor 7 */
    EQUAL(cfac_model_targets(m, other, objects, 1, look, out), 0); /* a is not as b */
    EQUAL(cfac_model_targets(m, &other[1], objects, 1, look, out), 0);
    EQUAL(cfac_model_targets(m, NULL, objects, 0, look, out), 0);
    cfac_model_free(m);
    return n;
}

TEST(destinations_are_as_their_tensors) {
    char memory[32];
    int64_t four[] = {4}, five[] = {5}, pair[] = {2, 2}, one[] = {1}, step[] = {2};
    made good = {memory, 1, 0, 1, 4, 16, 1, four, NULL, 0};
    EQUAL(fitting(&good), 2);
    made with = good;
    with.strides = one, with.byte_offset = 2;
    EQUAL(fitting(&with), 2);
    EQUAL(fitting(NULL), 1);
    struct {
        const char *what;
        made made;
    } bad[] = {{"strides", good}, {"shape", good}, {"ndim", good}, {"code", good}, {"bits", good},
                 {"lanes", good}, {"device", good}};
    bad[0].made.strides = step;
    bad[1].made.shape = five;
    bad[2].made.shape = pair, bad[2].made.ndim = 2;
    bad[3].made.code = 2;
    bad[4].made.bits = 32;
    bad[5].made.lanes = 2;
    bad[6].made.device_type = 2;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (fitting(&bad[i].made) != 1) failed(__FILE__, __LINE__, "%s was not seen", bad[i].what);
    made same = good;
    same.data = NULL; /* the first one's */
    EQUAL(fitting(&same), -EEXIST);
}

TEST(names_and_shapes_follow_one_another) {
    write_model(in_folder("one"), some, 6, 1);
    write_model(in_folder("two"), two, 2, 0);
    const char *paths[] = {in_folder("one"), in_folder("two")};
    cfac_model *m;
    FINE(cfac_model_open(paths, 2, CFAC_ALLOW_DUPLICATES, &m, &error));
    size_t n;
    const cfac_tensor *t = cfac_model_tensors(m, &n);
    EQUAL(n, 8);
    for (size_t i = 1; i < n; i++) {
        CHECK(t[i].name == t[i - 1].name + t[i - 1].name_length + 1);
        CHECK(t[i].shape == t[i - 1].shape + t[i - 1].ndim);
    }
    EQUAL(t[n - 1].shape[0], 4);
    EQUAL(t[n - 1].name[1], 0);
    cfac_model_free(m);
}
