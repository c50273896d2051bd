/* The header parser: what it takes, what it refuses, and under which code. */
#include "runner.h"

#include <errno.h>
#include <string.h>

static int parse(const char *json, uint64_t data, cfac_header **h, cfac_error *e) {
    size_t n = strlen(json);
    unsigned char *bytes = malloc(n + 8);
    CHECK(bytes != NULL);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)n >> i * 8);
    memcpy(bytes + 8, json, n);
    int r = cfac_header_parse(bytes, n + 8, n + 8 + data, "f", h, e);
    free(bytes); /* the header must not need it */
    return r;
}

static void refused(const char *json, uint64_t data, int code, const char *tensor) {
    cfac_header *h;
    cfac_error e;
    int r = parse(json, data, &h, &e);
    if (r != -EBADMSG || e.code != code || strcmp(e.tensor, tensor) != 0)
        failed(__FILE__, __LINE__, "%s: %d %s '%s' %s", json, r, cfac_code_name(e.code), e.tensor,
               e.message);
    CHECK(h == NULL);
    HAS(e.message, "f: ");
    CHECK(parse(json, data, &h, NULL) == -EBADMSG);
}

#define T(dtype, shape, offsets) \
    "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(header_gives_tensors_in_file_order) {
    cfac_header *h;
    size_t n;
    FINE(parse("{\"b\":" T("\"F32\"", "[2,1]", "[4,12]") ",\"a\":" T("\"U8\"", "[4]", "[0,4]")
               ",\"z\":" T("\"F64\"", "[0,7]", "[4,4]") ",\"s\":" T("\"BF16\"", "[]", "[12,14]")
               ",\"__metadata__\":{\"k\":\"v\"}} \n\t", 14, &h, &error));
    const cfac_tensor *t = cfac_header_tensors(h, &n);
    EQUAL(n, 4);
    const char *order[] = {"a", "z", "b", "s"};
    for (int i = 0; i < 4; i++) CHECK(strcmp(t[i].name, order[i]) == 0);
    EQUAL(t[2].ndim, 2);
    EQUAL(t[2].shape[0], 2);
    EQUAL(t[1].shape[1], 7);
    EQUAL(t[3].ndim, 0);
    EQUAL(t[2].end - t[2].begin, 8);
    const cfac_pair *p = cfac_header_metadata(h, &n);
    EQUAL(n, 1);
    CHECK(strcmp(p->key, "k") == 0 && strcmp(p->value, "v") == 0);
    cfac_header_free(h);
}

TEST(header_unescapes_names) {
    cfac_header *h;
    size_t n;
    FINE(parse("{\"\\u00e9\\ud83d\\ude00\\n\\/\\u0000x\":" T("\"U8\"", "[1]", "[0,1]") "}", 1, &h,
               &error));
    const cfac_tensor *t = cfac_header_tensors(h, &n);
    EQUAL(t->name_length, 10);
    CHECK(memcmp(t->name, "\xc3\xa9\xf0\x9f\x98\x80\n/\0x", 11) == 0);
    cfac_header_free(h);
}

TEST(header_skips_unknown_keys) {
    cfac_header *h;
    FINE(parse("{\"a\":{\"x\":{\"y\":[1,-2.5e+3,[],{},\"\\\"\",true,false,null]},\"dtype\":\"U8\","
               "\"shape\":[1],\"data_offsets\":[0,1]}}", 1, &h, &error));
    cfac_header_free(h);
}

TEST(header_takes_sub_byte_dtypes) {
    cfac_header *h;
    FINE(parse("{\"a\":" T("\"F4\"", "[2,8]", "[0,8]") ",\"b\":" T("\"F6_E2M3\"", "[4]", "[8,11]")
               "}", 11, &h, &error));
    cfac_header_free(h);
    refused("{\"a\":" T("\"F4\"", "[3]", "[0,1]") "}", 1, CFAC_PACKED, "a");
    refused("{\"a\":" T("\"F6_E3M2\"", "[3]", "[0,2]") "}", 2, CFAC_PACKED, "a");
}

TEST(header_refuses_bad_json) {
    refused("{\"a\":", 0, CFAC_JSON, "a");
    refused("{", 0, CFAC_JSON, "");
    refused("{\"a\" 1}", 0, CFAC_JSON, "");
    refused("{,}", 0, CFAC_JSON, "");
    refused("{}}", 0, CFAC_JSON, "");
    refused("{} x", 0, CFAC_JSON, "");
    refused("{\"a\nb\":1}", 0, CFAC_JSON, "");
    refused("{\"a\\x\":1}", 0, CFAC_JSON, "");
    refused("{\"a\\ud800\":1}", 0, CFAC_UTF8, "");
    refused("{\"a\\udc00\":1}", 0, CFAC_UTF8, "");
    refused("{\"\xc0\xaf\":1}", 0, CFAC_UTF8, "");
    refused("{\"\xed\xa0\x80\":1}", 0, CFAC_UTF8, "");
    refused("{\"\xf4\x90\x80\x80\":1}", 0, CFAC_UTF8, "");
    refused("{\"\xe2\x82\":1}", 0, CFAC_UTF8, "");
    refused("[]", 0, CFAC_NOT_OBJECT, "");
    refused(" {}", 0, CFAC_NOT_OBJECT, "");
    refused("{\"a\":{\"x\":01}}", 0, CFAC_JSON, "a");
    refused("{\"a\":{\"x\":tru}}", 0, CFAC_JSON, "a");
    refused("{\"a\":{\"x\":[1,]}}", 0, CFAC_JSON, "a");
    refused("{\"a\":{\"dtype\":\"U8\",}}", 0, CFAC_JSON, "a");
    refused("{\"a\":1}", 0, CFAC_JSON, "a");
}

TEST(header_limits_depth) {
    char json[256] = "{\"a\":{\"x\":";
    for (int i = 0; i < 40; i++) strcat(json, "[");
    refused(json, 0, CFAC_DEPTH, "a");
    char shape[1024] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1";
    for (int i = 0; i < 64; i++) strcat(shape, ",1");
    strcat(shape, "],\"data_offsets\":[0,1]}}");
    refused(shape, 1, CFAC_DEPTH, "a");
}

TEST(header_refuses_duplicates) {
    refused("{\"a\":" T("\"U8\"", "[1]", "[0,1]") ",\"b\":" T("\"U8\"", "[1]", "[1,2]")
            ",\"\\u0061\":" T("\"U8\"", "[1]", "[2,3]") "}", 3, CFAC_DUPLICATE_KEY, "a");
    refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
            CFAC_DUPLICATE_KEY, "a");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, CFAC_DUPLICATE_KEY, "");
    refused("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, CFAC_DUPLICATE_KEY, "");
}

TEST(header_refuses_bad_metadata) {
    refused("{\"__metadata__\":{\"k\":1}}", 0, CFAC_METADATA, "");
    refused("{\"__metadata__\":[]}", 0, CFAC_METADATA, "");
    cfac_header *h;
    FINE(parse("{\"__metadata__\":null}", 0, &h, &error));
    cfac_header_free(h);
}

TEST(header_refuses_bad_tensors) {
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, CFAC_MISSING_KEY, "a");
    refused("{\"a\":" T("\"Q8\"", "[1]", "[0,1]") "}", 1, CFAC_DTYPE, "a");
    refused("{\"a\":" T("8", "[1]", "[0,1]") "}", 1, CFAC_DTYPE, "a");
    refused("{\"a\":" T("\"U8\"", "[-1]", "[0,1]") "}", 1, CFAC_SHAPE, "a");
    refused("{\"a\":" T("\"U8\"", "\"1\"", "[0,1]") "}", 1, CFAC_SHAPE, "a");
    refused("{\"a\":" T("\"U8\"", "[1.0]", "[0,1]") "}", 1, CFAC_SHAPE, "a");
    refused("{\"a\":" T("\"U8\"", "[1]", "[0]") "}", 1, CFAC_OFFSETS, "a");
    refused("{\"a\":" T("\"U8\"", "[1]", "[0,1,2]") "}", 1, CFAC_OFFSETS, "a");
    refused("{\"a\":" T("\"U8\"", "[1]", "[0,1e0]") "}", 1, CFAC_OFFSETS, "a");
    refused("{\"a\":" T("\"U8\"", "[1]", "[0,18446744073709551616]") "}", 1, CFAC_OFFSETS, "a");
    refused("{\"a\":" T("\"U8\"", "[1]", "[1,0]") "}", 1, CFAC_OFFSETS, "a");
    refused("{\"a\":" T("\"U8\"", "[2]", "[0,1]") "}", 1, CFAC_SIZE, "a");
    /* 2^62 x 8 bytes: the product wraps to 0 bits, and an empty dimension makes up for nothing else */
    refused("{\"a\":" T("\"F64\"", "[4611686018427387904]", "[0,0]") "}", 0, CFAC_SIZE, "a");
    cfac_header *h;
    FINE(parse("{\"a\":" T("\"F64\"", "[4611686018427387904,8,0]", "[0,0]") "}", 0, &h, &error));
    cfac_header_free(h);
}

TEST(header_refuses_bad_cover) {
#define AB(one, two) \
    "{\"a\":" T("\"U8\"", "[4]", one) ",\"b\":" T("\"U8\"", "[4]", two) "}"
    refused(AB("[0,4]", "[3,7]"), 7, CFAC_OVERLAP, "b");
    refused(AB("[0,4]", "[5,9]"), 9, CFAC_HOLE, "b");
    refused(AB("[1,5]", "[5,9]"), 9, CFAC_HOLE, "a");
    refused(AB("[0,4]", "[4,8]"), 7, CFAC_TRUNCATED, "b");
    refused(AB("[0,4]", "[4,8]"), 9, CFAC_TRAILING, "");
    refused("{}", 1, CFAC_TRAILING, "");
    refused("{\"a\":" T("\"U8\"", "[1]", "[18446744073709551614,18446744073709551615]") "}", 1,
            CFAC_HOLE, "a");
}

static void refused_bytes(const void *bytes, size_t length, uint64_t size, int code) {
    cfac_header *h;
    cfac_error e;
    EQUAL(cfac_header_parse(bytes, length, size, "f", &h, &e), -EBADMSG);
    EQUAL(e.code, code);
}

TEST(header_refuses_bad_lengths) {
    unsigned char b[16] = {0};
    refused_bytes(b, 0, 0, CFAC_TOO_SHORT);
    refused_bytes(b, 7, 7, CFAC_TOO_SHORT);
    refused_bytes(b, 16, 16, CFAC_HEADER_LENGTH);
    b[0] = 9;
    refused_bytes(b, 16, 16, CFAC_HEADER_LENGTH);
    memset(b, 0xff, 8);
    refused_bytes(b, 16, 16, CFAC_HEADER_LIMIT);
    memcpy(b, "\x01\xe1\xf5\x05\0\0\0\0", 8); /* one over the limit, in a file that is long enough */
    refused_bytes(b, 16, (uint64_t)1 << 40, CFAC_HEADER_LIMIT);
    refused_bytes("PK\3\4xxxxxxxx", 12, 12, CFAC_ZIP);
    refused_bytes("version https://git-lfs.github.com/spec/v1\n", 43, 43, CFAC_GIT_LFS);
    cfac_header *h;
    EQUAL(cfac_header_parse("\x20\0\0\0\0\0\0\0{", 9, 100, "f", &h, NULL), -EINVAL);
}

TEST(header_of_many_tensors_is_not_quadratic) {
    enum { N = 60000 }; /* a quadratic check of names would take minutes */
    char *json = malloc(N * 90);
    CHECK(json != NULL);
    size_t n = (size_t)sprintf(json, "{");
    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(json + n, "%s\"layer.%d\":" T("\"U8\"", "[1]", "[%d,%d]"), i ? "," : "",
                             i, i, i + 1);
    sprintf(json + n, "}");
    cfac_header *h;
    FINE(parse(json, N, &h, &error));
    size_t count;
    cfac_header_tensors(h, &count);
    EQUAL(count, N);
    cfac_header_free(h);
    free(json);
}

TEST(messages_are_printable_and_whole) {
    cfac_header *h;
    cfac_error e;
    char json[2200] = "{\"";
    for (int i = 0; i < 300; i++) strcat(json, "\xc3\xa9");
    strcat(json, "\\u0007\":1}");
    CHECK(parse(json, 0, &h, &e) < 0);
    EQUAL(strlen(e.tensor) % 2, 0);
    CHECK(strlen(e.tensor) < sizeof e.tensor);
    HAS(e.message, "...");
    HAS(e.message, "byte ");
    CHECK(parse("{\"\\u0007\":1}", 0, &h, &e) < 0);
    HAS(e.message, "'\\x07'");
    CHECK(strcmp(cfac_code_name(CFAC_OVERLAP), "OVERLAP") == 0);
    CHECK(strcmp(cfac_code_name(-1), "?") == 0);
}
