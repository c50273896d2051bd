/* A driver for the fuzz target without libFuzzer: seeds from files, mutated by a seeded generator.
 * fuzz SECONDS SEED FILE... ; an input that crashes is left in fuzz-crash (TMPDIR). */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 8192 };
static uint64_t state;
static uint8_t current[MOST + 64];
static size_t current_size;
static char crash[512];

/* Sanitizers call this on the way out. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void keep(void) {
    FILE *f = fopen(crash, "w");
    if (f == NULL) return;
    fwrite(current, 1, current_size, f);
    fclose(f);
    fprintf(stderr, "the input is in %s\n", crash);
}

static uint64_t draw(uint64_t below) { /* xorshift64* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du % below;
}

static void replace(size_t at, size_t cut, const char *with, size_t length) {
    if (at > current_size) at = current_size;
    if (cut > current_size - at) cut = current_size - at;
    if (current_size - cut + length > MOST) return;
    memmove(current + at + length, current + at + cut, current_size - at - cut);
    memcpy(current + at, with, length);
    current_size = current_size - cut + length;
}

static void mutate(void) {
    static const char *const words[] = {
        "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u0000", "\\ud800", "\\ud83d\\ude00", "null", "0",
        "-1", "1e9", "18446744073709551615", "18446744073709551616", "9223372036854775808", "\"F4\"",
        "\"F6_E2M3\"", "\"F64\"", "\"dtype\"", "\"shape\":[0]", "\"data_offsets\":[0,0]",
        "\"__metadata__\":{\"a\":\"b\"},", "\"x\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},",
        "\xc3\xa9", "\xff", "[[[[[[[[", " ", "\n",
    };
    for (uint64_t n = 1 + draw(4); n > 0; n--) {
        size_t at = 8 + (size_t)draw(current_size > 8 ? current_size - 8 : 1);
        const char *w = words[draw(sizeof words / sizeof *words)];
        switch (draw(6)) {
        case 0: current[at] = (uint8_t)draw(256); break;
        case 1: current[at] = (uint8_t)(current[at] ^ 1u << draw(8)); break;
        case 2: replace(at, 0, w, strlen(w)); break;
        case 3: replace(at, (size_t)draw(24), w, strlen(w)); break;
        case 4: replace(at, (size_t)draw(16), "", 0); break;
        default: { /* repeat a part: duplicate keys and tensors */
            char part[128];
            size_t from = 8 + (size_t)draw(current_size > 8 ? current_size - 8 : 1);
            size_t length = (size_t)draw(sizeof part);
            if (from >= current_size) from = 0;
            if (length > current_size - from) length = current_size - from;
            memcpy(part, current + from, length);
            replace(at, 0, part, length);
        }
        }
    }
}

static void fix_length(void) { /* mostly right, so that the JSON is reached */
    if (current_size < 10 || draw(8) == 0) return;
    uint64_t n = current_size - 8;
    for (int i = 0; i < 8; i++) current[i] = (uint8_t)(n >> i * 8);
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    double seconds = atof(arguments[1]);
    state = strtoull(arguments[2], NULL, 10) * 2 + 1;
    const char *parent = getenv("TMPDIR");
    snprintf(crash, sizeof crash, "%s/fuzz-crash", parent ? parent : "/tmp");
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(keep);
    static uint8_t seeds[128][MOST];
    static size_t sizes[128];
    size_t n = 0;
    for (int i = 3; i < count && n < 128; i++) {
        FILE *f = fopen(arguments[i], "r");
        if (f == NULL) return 2;
        sizes[n] = fread(seeds[n], 1, MOST, f);
        fclose(f);
        if (sizes[n] < 10) continue;
        uint64_t header = 0; /* without the data, so that mutations meet the header */
        for (int k = 7; k >= 0; k--) header = header << 8 | seeds[n][k];
        if (header < sizes[n] - 8) sizes[n] = (size_t)header + 8;
        if (sizes[n] >= 10) n++;
    }
    if (n == 0) return 2;
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    unsigned long runs = 0;
    do {
        for (int i = 0; i < 200; i++, runs++) {
            size_t s = (size_t)draw(n);
            memcpy(current, seeds[s], sizes[s]);
            current_size = sizes[s];
            if (runs >= n) {
                mutate();
                fix_length();
            }
            LLVMFuzzerTestOneInput(current, current_size);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - from.tv_sec) + 1e-9 * (double)(now.tv_nsec - from.tv_nsec) < seconds);
    printf("%lu runs\n", runs);
    return 0;
}
