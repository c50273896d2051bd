/* Destinations on a device, with test doubles of libcudart and libcufile. No GPU has run this. */
#define _GNU_SOURCE
#include "loading.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *beside(const char *name) { /* the doubles lie beside this program */
    static char paths[2][600];
    static int turn;
    char *out = paths[turn++ % 2];
    ssize_t n = readlink("/proc/self/exe", out, 500);
    CHECK(n > 0);
    out[n] = 0;
    strcpy(strrchr(out, '/') + 1, name);
    return out;
}

static cfac_job_options on_device(void) {
    return (cfac_job_options){.device = 1, .cuda_library = beside("libfake_cuda.so"),
                              .cufile_library = beside("libfake_cufile.so"), .ring = 3};
}

static cfac_counters load(cfac_job_options o, char *reason) {
    loading l = open_job(in_folder("m"), 8192, o);
    char *memory[TENSORS];
    size_t n;
    const cfac_item *item = cfac_plan_items(l.plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        memory[i] = calloc(1, (size_t)item[i].length + 1);
        EQUAL(cfac_job_into(l.job, i, memory[i], item[i].length, i != 2), 0); /* one on the host */
    }
    FINE(cfac_job_start(l.job, &error));
    FINE(cfac_job_wait(l.job, 20000, &error));
    strcpy(reason, cfac_job_reason(l.job, CFAC_CUFILE));
    cfac_counters c = counters(l);
    for (uint32_t i = 0; i < n; i++) {
        check_content(tensor_at(l, i)->name, memory[i], 0, item[i].length);
        free(memory[i]);
    }
    end(l);
    return c;
}

static bool direct_possible(void) {
    int fd = open(in_folder("m"), O_RDONLY | O_DIRECT);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

TEST(device_memory_is_copied_to) {
    char why[160];
    write_model(in_folder("m"), tensors, TENSORS, 1);
    cfac_job_options o = on_device();
    o.cufile_library = "";
    for (uint32_t direct = 0; direct <= 2; direct++) {
        o.direct = direct;
        cfac_counters c = load(o, why);
        CHECK(c.copied_bytes > 0);
        EQUAL(c.device_bytes, 0);
        HAS(why, "switched off");
    }
}

TEST(device_memory_is_read_into_by_cufile) {
    char why[160];
    write_model(in_folder("m"), tensors, TENSORS, 1);
    cfac_counters c = load(on_device(), why);
    if (direct_possible()) {
        CHECK(c.device_bytes > 40000); /* the chunks inside `mid` */
        CHECK(*why == 0);
    }
}

TEST(cufile_that_fails_to_open_falls_back) {
    char why[160];
    write_model(in_folder("m"), tensors, TENSORS, 1);
    setenv("FAKE_CUFILE", "d", 1);
    EQUAL(load(on_device(), why).device_bytes, 0);
    HAS(why, "cuFileDriverOpen: error 5001");
    setenv("FAKE_CUFILE", "r", 1);
    EQUAL(load(on_device(), why).device_bytes, 0);
    if (direct_possible()) HAS(why, "cuFileHandleRegister: error 5027");
    unsetenv("FAKE_CUFILE");
}

TEST(cufile_may_not_damage_descriptor_0) {
    char why[160];
    struct stat before, after;
    write_model(in_folder("m"), tensors, TENSORS, 1);
    if (fstat(0, &before) < 0) return;
    setenv("FAKE_CUFILE", "z", 1);
    load(on_device(), why);
    unsetenv("FAKE_CUFILE");
    EQUAL(fstat(0, &after), 0);
    EQUAL(after.st_ino, before.st_ino);
}

static cfac_error failing(void) {
    loading l = open_job(in_folder("m"), 8192, on_device());
    size_t n;
    char *memory[TENSORS];
    const cfac_item *item = cfac_plan_items(l.plan, &n);
    for (uint32_t i = 0; i < n; i++) {
        memory[i] = calloc(1, (size_t)item[i].length + 1);
        EQUAL(cfac_job_into(l.job, i, memory[i], item[i].length, 1), 0);
    }
    cfac_error e = {0};
    FINE(cfac_job_start(l.job, &error));
    CHECK(cfac_job_wait(l.job, 20000, &e) < 0);
    end(l);
    for (uint32_t i = 0; i < n; i++) free(memory[i]);
    return e;
}

TEST(a_failing_device_is_an_error) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    setenv("FAKE_CUDA_FAIL", "1", 1);
    cfac_error e = failing();
    EQUAL(e.code, CFAC_DEVICE);
    HAS(e.message, "CUDA: made up");
    unsetenv("FAKE_CUDA_FAIL");
    if (!direct_possible()) return;
    setenv("FAKE_CUFILE", "e", 1);
    EQUAL(failing().error, -EIO);
    unsetenv("FAKE_CUFILE");
}

TEST(a_missing_device_is_an_error) {
    write_model(in_folder("m"), tensors, TENSORS, 1);
    loading l = open_job(in_folder("m"), 8192, (cfac_job_options){0});
    cfac_job_options o = on_device();
    cfac_job *none;
    cfac_error e;
    o.size = sizeof o, o.device = 7;
    EQUAL(cfac_job_open(l.plan, &o, &none, &e), -ENODEV);
    EQUAL(e.code, CFAC_DEVICE);
    HAS(e.message, "cudaSetDevice(7): invalid device ordinal");
    o.cuda_library = "/nowhere/libcudart.so";
    EQUAL(cfac_job_open(l.plan, &o, &none, &e), -ENOSYS);
    HAS(e.message, "/nowhere/libcudart.so");
    end(l);
}
