/* What this process may use: cores and memory, by affinity, cgroup (v1 and v2) and machine. */
#define _GNU_SOURCE
#include "internal.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t cfac__now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool read_text(const char *path, char *text, size_t size) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return false;
    size_t n = fread(text, 1, size - 1, f);
    fclose(f);
    text[n] = 0;
    return n > 0;
}

static bool read_number(const char *folder, const char *name, uint64_t *out) {
    char path[4400], text[64];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
    if (!read_text(path, text, sizeof text) || text[0] < '0' || text[0] > '9') return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

/* This process's folder under each hierarchy: the lines of /proc/self/cgroup. */
static bool cgroup(const char *root, const char *controller, char *out, size_t size) {
    char path[4096], text[8192];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_text(path, text, sizeof text)) return false;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
        if (second == NULL) continue;
        *second = 0;
        char listed[256], wanted[64];
        snprintf(listed, sizeof listed, ",%s,", first + 1);
        snprintf(wanted, sizeof wanted, ",%s,", controller);
        if (*controller ? strstr(listed, wanted) != NULL : first[1] == 0)
            return snprintf(out, size, "%s", second + 1) < (int)size;
    }
    return false;
}

/* Least of limit - use of a cgroup and of those above it, as far as they can be seen. */
static uint64_t left(const char *mount, const char *group, const char *limit, const char *use) {
    char folder[4400];
    uint64_t least = UINT64_MAX;
    size_t length = strlen(group);
    for (;;) {
        snprintf(folder, sizeof folder, "%s%.*s", mount, (int)length, group);
        uint64_t max, now;
        if (read_number(folder, limit, &max) && read_number(folder, use, &now)) {
            uint64_t room = max > now ? max - now : 0;
            if (room < least) least = room;
        }
        if (length == 0) return least;
        while (length > 0 && group[length - 1] != '/') length--;
        if (length > 0) length--;
    }
}

uint64_t cfac_memory_left(const char *root) {
    char group[2048], mount[2200], text[8192];
    uint64_t least = UINT64_MAX, room;
    if (root == NULL) root = "";
    snprintf(mount, sizeof mount, "%s/proc/meminfo", root);
    if (read_text(mount, text, sizeof text)) {
        const char *line = strstr(text, "MemAvailable:");
        if (line != NULL) least = strtoull(line + 13, NULL, 10) * 1024;
    }
    if (cgroup(root, "", group, sizeof group)) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        room = left(mount, group, "memory.max", "memory.current");
        if (room < least) least = room;
    }
    if (cgroup(root, "memory", group, sizeof group)) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
        room = left(mount, group, "memory.limit_in_bytes", "memory.usage_in_bytes");
        if (room < least) least = room;
    }
    return least;
}

static uint32_t quota(void) {
    char group[2048], path[2200], text[64];
    uint64_t limit, period;
    if (cgroup("", "", group, sizeof group)) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        if (read_text(path, text, sizeof text) &&
            sscanf(text, "%" SCNu64 " %" SCNu64, &limit, &period) == 2 && period > 0)
            return (uint32_t)((limit + period - 1) / period);
    }
    if (cgroup("", "cpu", group, sizeof group)) {
        snprintf(path, sizeof path, "/sys/fs/cgroup/cpu%s", group);
        if (read_number(path, "cpu.cfs_quota_us", &limit) &&
            read_number(path, "cpu.cfs_period_us", &period) && period > 0)
            return (uint32_t)((limit + period - 1) / period);
    }
    return UINT32_MAX;
}

uint32_t cfac_cores(void) {
    uint32_t cores = 1, most = quota();
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = (uint32_t)CPU_COUNT(&set);
    if (cores > most) cores = most;
    return cores > 0 ? cores : 1;
}
