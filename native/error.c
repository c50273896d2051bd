/* Errors: one closed list of codes, one line of message that names file, offset and tensor. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
    "OK", "SYSTEM", "ARGUMENT", "NO_MEMORY", "NOT_REGULAR", "TOO_SHORT", "GIT_LFS", "ZIP",
    "HEADER_LENGTH", "HEADER_LIMIT", "NOT_OBJECT", "UTF8", "JSON", "DEPTH", "DUPLICATE_KEY",
    "METADATA", "MISSING_KEY", "DTYPE", "SHAPE", "OFFSETS", "SIZE", "PACKED", "OVERLAP", "HOLE",
    "TRUNCATED", "TRAILING", "DUPLICATE_TENSOR", "LAYOUT", "CHANGED", "SHRANK", "READ", "DEVICE",
    "CANCELLED", "FORKED",
};
_Static_assert(sizeof names / sizeof *names == CFAC_CODES, "a code without a name");

const char *cfac_code_name(int32_t code) {
    return code >= 0 && code < CFAC_CODES ? names[code] : "?";
}

uint32_t cfac_abi(void) { return CFAC_ABI; }

/* The length of the valid UTF-8 sequence at `s`, or 0. */
static size_t sequence(const unsigned char *s, size_t left) {
    if (s[0] < 0x80) return 1;
    size_t n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : s[0] >= 0xC2 ? 2 : 0;
    if (n == 0 || n > left || s[0] > 0xF4) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return n;
}

char *cfac__printable(char *out, size_t size, const char *name, size_t length) {
    const unsigned char *s = (const unsigned char *)name;
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        size_t n = sequence(s + i, length - i);
        bool plain = n > 1 || (n == 1 && s[i] >= 0x20 && s[i] != 0x7F);
        size_t need = plain ? n : 4;
        if (used + need + 4 > size) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (plain)
            memcpy(out + used, s + i, n);
        else
            snprintf(out + used, 5, "\\x%02x", s[i]);
        used += need;
        i += plain ? n : 1;
    }
    out[used] = 0;
    return out;
}

static void cut(char *to, size_t size, const char *name, size_t length) {
    const unsigned char *s = (const unsigned char *)name;
    size_t n = 0;
    while (n < length) {
        size_t step = sequence(s + n, length - n);
        if (step == 0 || n + step >= size) break;
        n += step;
    }
    memcpy(to, name, n);
    to[n] = 0;
}

int cfac__fail(cfac_error *error, int err, cfac_code code, const char *format, ...) {
    if (error == NULL) return err;
    memset(error, 0, sizeof *error);
    error->error = err;
    error->code = (int32_t)code;
    error->offset = CFAC_NO_OFFSET;
    va_list list;
    va_start(list, format);
    vsnprintf(error->message, sizeof error->message, format, list);
    va_end(list);
    return err;
}

int cfac__fail_at(cfac_error *error, int err, cfac_code code, uint64_t offset, const char *name,
                  size_t name_length, const char *format, ...) {
    if (error == NULL) return err;
    memset(error, 0, sizeof *error);
    error->error = err;
    error->code = (int32_t)code;
    error->offset = offset;
    va_list list;
    va_start(list, format);
    int used = vsnprintf(error->message, sizeof error->message, format, list);
    va_end(list);
    size_t at = used < 0 ? 0 : (size_t)used;
    if (at >= sizeof error->message) return err;
    char *rest = error->message + at;
    size_t room = sizeof error->message - at;
    if (name != NULL) {
        char shown[200];
        cut(error->tensor, sizeof error->tensor, name, name_length);
        cfac__printable(shown, sizeof shown, name, name_length);
        used = snprintf(rest, room, " (tensor '%s'", shown);
        if (used < 0 || (size_t)used >= room) return err;
        rest += used, room -= (size_t)used;
    }
    const char *before = name != NULL ? ", " : " (";
    if (offset != CFAC_NO_OFFSET)
        snprintf(rest, room, "%sbyte %" PRIu64 ")", before, offset);
    else if (name != NULL)
        snprintf(rest, room, ")");
    return err;
}
