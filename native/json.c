/* A strict JSON pull parser (RFC 8259) over bytes in memory: no recursion, no number but integers
 * where integers are asked for, strings checked as UTF-8 and unescaped into one arena. */
#include "internal.h"

#include <string.h>

#define MAX_DEPTH 32u

bool json__fail(json *j, cfac_code code, const char *what) {
    if (j->what == NULL) {
        j->code = code;
        j->what = what;
    }
    return false;
}

bool json__space(json *j) {
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t'))
        j->at++;
    return j->at < j->end;
}

bool json__take(json *j, unsigned char c) {
    if (!json__space(j) || *j->at != c) return false;
    j->at++;
    return true;
}

static bool hex4(json *j, uint32_t *out) {
    if (j->end - j->at < 4) return json__fail(j, CFAC_JSON, "unfinished \\u escape");
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = *j->at;
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            digit = (uint32_t)(c | 0x20) - 'a' + 10;
        else
            return json__fail(j, CFAC_JSON, "bad \\u escape");
        value = value << 4 | digit;
        j->at++;
    }
    *out = value;
    return true;
}

static void put(json *j, uint32_t byte) { j->text[j->used++] = (char)(unsigned char)byte; }

static void put_code_point(json *j, uint32_t c) {
    if (c < 0x80) {
        put(j, c);
    } else if (c < 0x800) {
        put(j, 0xC0 | c >> 6), put(j, 0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(j, 0xE0 | c >> 12), put(j, 0x80 | (c >> 6 & 0x3F)), put(j, 0x80 | (c & 0x3F));
    } else {
        put(j, 0xF0 | c >> 18), put(j, 0x80 | (c >> 12 & 0x3F));
        put(j, 0x80 | (c >> 6 & 0x3F)), put(j, 0x80 | (c & 0x3F));
    }
}

static bool escape(json *j) {
    if (j->at >= j->end) return json__fail(j, CFAC_JSON, "unfinished string");
    unsigned char c = *j->at++;
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *known = c == 0 ? NULL : strchr(from, c);
    if (known != NULL) {
        put(j, (unsigned char)to[known - from]);
        return true;
    }
    if (c != 'u') return json__fail(j, CFAC_JSON, "unknown escape in a string");
    uint32_t high, low;
    if (!hex4(j, &high)) return false;
    if (high >= 0xDC00 && high <= 0xDFFF) return json__fail(j, CFAC_UTF8, "lone surrogate");
    if (high >= 0xD800 && high <= 0xDBFF) {
        if (j->end - j->at < 2 || j->at[0] != '\\' || j->at[1] != 'u')
            return json__fail(j, CFAC_UTF8, "lone surrogate");
        j->at += 2;
        if (!hex4(j, &low)) return false;
        if (low < 0xDC00 || low > 0xDFFF) return json__fail(j, CFAC_UTF8, "lone surrogate");
        high = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    }
    put_code_point(j, high);
    return true;
}

/* Copy one UTF-8 sequence of two bytes or more (RFC 3629: no overlong forms, no surrogates). */
static bool sequence(json *j) {
    const unsigned char *s = j->at;
    unsigned char lowest = 0x80, highest = 0xBF;
    int more;
    if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        more = 1;
    } else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        more = 2;
        if (s[0] == 0xE0) lowest = 0xA0;
        if (s[0] == 0xED) highest = 0x9F;
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        more = 3;
        if (s[0] == 0xF0) lowest = 0x90;
        if (s[0] == 0xF4) highest = 0x8F;
    } else {
        return json__fail(j, CFAC_UTF8, "invalid UTF-8");
    }
    if (j->end - s <= more) return json__fail(j, CFAC_UTF8, "invalid UTF-8");
    put(j, s[0]);
    for (int i = 1; i <= more; i++) {
        if (s[i] < lowest || s[i] > highest) return json__fail(j, CFAC_UTF8, "invalid UTF-8");
        lowest = 0x80, highest = 0xBF;
        put(j, s[i]);
    }
    j->at += more + 1;
    return true;
}

/* ASCII that a string holds as it is. */
static bool is_plain(unsigned char c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; }

bool json__string(json *j, const char **out, size_t *length) {
    if (!json__space(j) || *j->at != '"') return json__fail(j, CFAC_JSON, "expected a string");
    j->at++;
    size_t start = j->used;
    while (j->at < j->end) {
        const unsigned char *plain = j->at;
        while (j->at < j->end && is_plain(*j->at)) j->at++;
        size_t run = (size_t)(j->at - plain);
        memcpy(j->text + j->used, plain, run);
        j->used += run;
        if (j->at == j->end) break;
        unsigned char c = *j->at;
        if (c == '"') {
            j->at++;
            *out = j->text + start;
            *length = j->used - start;
            put(j, 0); /* there is room: two quotes were read */
            return true;
        }
        if (c < 0x20) return json__fail(j, CFAC_JSON, "control character in a string");
        if (c == '\\') {
            j->at++;
            if (!escape(j)) return false;
        } else if (!sequence(j)) {
            return false;
        }
    }
    return json__fail(j, CFAC_JSON, "unfinished string");
}

bool json__integer(json *j, uint64_t *out) {
    if (!json__space(j) || *j->at < '0' || *j->at > '9')
        return json__fail(j, CFAC_JSON, "expected a non-negative integer");
    const unsigned char *first = j->at;
    uint64_t value = 0;
    while (j->at < j->end && *j->at >= '0' && *j->at <= '9') {
        uint64_t digit = (uint64_t)*j->at - '0';
        if (value > (UINT64_MAX - digit) / 10)
            return json__fail(j, CFAC_JSON, "integer of more than 64 bits");
        value = value * 10 + digit;
        j->at++;
    }
    if (*first == '0' && j->at - first > 1)
        return json__fail(j, CFAC_JSON, "integer with a leading zero");
    if (j->at < j->end && (*j->at == '.' || *j->at == 'e' || *j->at == 'E'))
        return json__fail(j, CFAC_JSON, "expected an integer, not a decimal number");
    *out = value;
    return true;
}

static bool digits(json *j) {
    const unsigned char *first = j->at;
    while (j->at < j->end && *j->at >= '0' && *j->at <= '9') j->at++;
    return j->at > first || json__fail(j, CFAC_JSON, "bad number");
}

static bool number(json *j) {
    if (*j->at == '-') j->at++;
    const unsigned char *first = j->at;
    if (!digits(j)) return false;
    if (*first == '0' && j->at - first > 1) return json__fail(j, CFAC_JSON, "bad number");
    if (j->at < j->end && *j->at == '.') {
        j->at++;
        if (!digits(j)) return false;
    }
    if (j->at < j->end && (*j->at == 'e' || *j->at == 'E')) {
        j->at++;
        if (j->at < j->end && (*j->at == '+' || *j->at == '-')) j->at++;
        return digits(j);
    }
    return true;
}

static bool scalar(json *j) {
    static const char *const words[] = {"true", "false", "null"};
    const char *text;
    size_t length;
    if (*j->at == '"') {
        size_t used = j->used;
        bool fine = json__string(j, &text, &length);
        j->used = used; /* skipped: its room is free again */
        return fine;
    }
    if (*j->at == '-' || (*j->at >= '0' && *j->at <= '9')) return number(j);
    for (size_t i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(j->end - j->at) >= n && memcmp(j->at, words[i], n) == 0) {
            j->at += n;
            return true;
        }
    }
    return json__fail(j, CFAC_JSON, "expected a value");
}

static bool key(json *j) {
    const char *text;
    size_t length, used = j->used;
    if (!json__string(j, &text, &length)) return false;
    j->used = used;
    return json__take(j, ':') || json__fail(j, CFAC_JSON, "expected ':'");
}

bool json__skip(json *j) {
    unsigned char close[MAX_DEPTH]; /* what ends the open arrays and objects */
    unsigned depth = 0;
    for (;;) {
        if (!json__space(j)) return json__fail(j, CFAC_JSON, "unexpected end");
        if (*j->at == '[' || *j->at == '{') {
            if (depth == MAX_DEPTH) return json__fail(j, CFAC_DEPTH, "nested too deeply");
            unsigned char end = *j->at == '[' ? ']' : '}';
            j->at++;
            if (!json__take(j, end)) {
                close[depth++] = end;
                if (end == '}' && !key(j)) return false;
                continue;
            }
        } else if (!scalar(j)) {
            return false;
        }
        while (depth > 0 && json__take(j, close[depth - 1])) depth--;
        if (depth == 0) return true;
        if (!json__take(j, ',')) return json__fail(j, CFAC_JSON, "expected ',' or a closing bracket");
        if (close[depth - 1] == '}' && !key(j)) return false;
    }
}
