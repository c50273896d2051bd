/* CRC-32C (Castagnoli, RFC 3720): by the processor's instruction where there is one, else by
 * tables. */
#include "internal.h"

#include <string.h>

static uint32_t by_table(uint32_t crc, const unsigned char *p, size_t n) {
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    while (n-- > 0) {
        crc ^= *p++;
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc,
                                                                 const unsigned char *p, size_t n) {
    uint64_t wide = crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; n > 0; p++, n--) crc = __builtin_ia32_crc32qi(crc, *p);
    return crc;
}
#endif

uint32_t cfac_crc32c(uint32_t crc, const void *data, size_t length) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(~crc, data, length);
#endif
    return ~by_table(~crc, data, length);
}

#ifdef CFAC_TEST
uint32_t cfac__crc32c_by_table(uint32_t crc, const void *data, size_t length);
uint32_t cfac__crc32c_by_table(uint32_t crc, const void *data, size_t length) {
    return ~by_table(~crc, data, length);
}
#endif
