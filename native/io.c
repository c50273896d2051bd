/* Small pieces of I/O: whole reads, residency in the page cache, what O_DIRECT has to know. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5; the same number on every architecture */
#endif
#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x00002000U /* Linux 6.1 */
#endif
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008
#endif

int cfac__pread_all(int fd, void *into, uint64_t length, uint64_t offset, uint64_t *got) {
    uint64_t done = 0;
    while (done < length) {
        uint64_t want = length - done < MAX_READ ? length - done : MAX_READ;
        ssize_t n = pread(fd, (char *)into + done, (size_t)want, (off_t)(offset + done));
        if (n < 0) {
            if (errno == EINTR || errno == EAGAIN) continue;
            *got = done;
            return -errno;
        }
        if (n == 0) break;
        done += (uint64_t)n;
    }
    *got = done;
    return 0;
}

/* cachestat(2) tells the number of pages; a kernel without it, or one that will not tell (since 6.14
 * only the owner or who may write is told), is asked with a few reads that must not wait (the first to
 * fail starts a small readahead). mincore(2) has the same restriction, says "resident" to all others,
 * and needs a mapping. */
int cfac__resident(int fd, uint64_t offset, uint64_t length) {
    struct {
        uint64_t offset, length;
    } range = {offset, length};
    uint64_t pages[5] = {0}; /* cached, dirty, written back, evicted, recently evicted */
    if (length == 0) return 1;
    if (syscall(SYS_cachestat, fd, &range, pages, 0) == 0) {
        uint64_t all = (offset + length + PAGE - 1) / PAGE - offset / PAGE;
        return pages[0] * 8 >= all * 7;
    }
    for (int i = 0; i < 4; i++) {
        char byte;
        struct iovec v = {&byte, 1};
        uint64_t at = offset + (length - 1) / 3 * (uint64_t)i;
        if (preadv2(fd, &v, 1, (off_t)at, RWF_NOWAIT) != 1) return 0;
    }
    return 1;
}

bool cfac__direct_alignment(int fd, uint32_t *memory, uint32_t *offset) {
    /* struct statx of any kernel, whatever the headers know: 256 bytes */
    union {
        struct {
            uint32_t mask;
            unsigned char before[0x98 - 4];
            uint32_t memory, offset;
        } s;
        unsigned char bytes[256];
    } x;
    _Static_assert(offsetof(struct statx, stx_rdev_major) == 0x80, "struct statx moved");
    memset(&x, 0, sizeof x);
    long r = syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x);
    if (r == 0 && x.s.mask & STATX_DIOALIGN) {
        *memory = x.s.memory;
        *offset = x.s.offset;
        return *memory > 0 && *offset > 0;
    }
    *memory = *offset = 4096; /* not told: right for every disk of 512 or 4096-byte sectors */
    return true;
}

bool cfac__in_huge_pages(const void *data, uint64_t length) {
    /* struct pm_scan_arg and page_region, whatever the headers know */
    struct {
        uint64_t begin, end, categories;
    } found[16];
    struct {
        uint64_t size, flags, begin, end, walked, found, count, most;
        uint64_t inverted, all_of, any_of, tell;
    } scan = {.size = sizeof scan, .found = (uintptr_t)found, .count = 16};
    const uint64_t is_huge = 1 << 6, whole = (uintptr_t)data + length;
    scan.begin = ALIGN_DOWN((uintptr_t)data, PAGE), scan.end = ALIGN_UP(whole, PAGE);
    scan.all_of = scan.tell = is_huge;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    int regions = ioctl(fd, _IOWR('f', 16, scan), &scan); /* PAGEMAP_SCAN, Linux 6.7 */
    close(fd);
    uint64_t huge = 0;
    for (int i = 0; i < regions; i++) huge += found[i].end - found[i].begin;
    return huge >= length / 8 * 7;
}
