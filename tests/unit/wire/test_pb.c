#include "proto/wire/pb.h"

#include "tests/support/test.h"

TEST(varints_of_every_length)
{
    for (uint32_t bits = 0; bits <= 64; bits++) {
        uint64_t values[] = {bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1, bits == 64 ? 0 : UINT64_C(1) << bits};
        for (uint32_t i = 0; i < 2; i++) {
            struct text w = {0};
            pb_varint(&w, values[i]);
            assert_int_equal(w.size, pb_varint_size(values[i]));
            struct pb_number back = pb_read_varint(w.bytes, w.bytes + w.size);
            assert_ptr_equal(back.at, w.bytes + w.size);
            assert_int_equal(back.value, values[i]);
            for (size_t cut = 0; cut < w.size; cut++)
                assert_null(pb_read_varint(w.bytes, w.bytes + cut).at);
            text_fini(&w);
        }
    }
}

TEST(varints_past_64_bits_are_damage)
{
    const uint8_t most[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01};
    const uint8_t more[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02};
    const uint8_t longer[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00};
    assert_int_equal(pb_read_varint(most, most + sizeof most).value, UINT64_MAX);
    assert_ptr_equal(pb_read_varint(most, most + sizeof most).at, most + sizeof most);
    assert_null(pb_read_varint(more, more + sizeof more).at);
    assert_null(pb_read_varint(longer, longer + sizeof longer).at);
}

TEST(reader_gives_every_field)
{
    struct text w = {0};
    pb_put_varint(&w, 1, 300);
    pb_tag(&w, 2, PB_FIXED32);
    memcpy(text_reserve(&w, 4), "\4\3\2\1", 4);
    pb_put_fixed64(&w, 300, UINT64_C(0x0102030405060708));
    pb_put_bytes(&w, 16, "abc", 3);
    struct pb_reader r = pb_reader(w.bytes, w.size);
    struct pb_field f;
    assert_int_equal(pb_next(&r, &f), 1);
    assert_int_equal(f.number, 1);
    assert_int_equal(f.wire, PB_VARINT);
    assert_int_equal(f.value, 300);
    assert_int_equal(pb_next(&r, &f), 1);
    assert_int_equal(f.number, 2);
    assert_int_equal(f.wire, PB_FIXED32);
    assert_int_equal(f.value, 0x01020304);
    assert_int_equal(pb_next(&r, &f), 1);
    assert_int_equal(f.number, 300);
    assert_int_equal(f.wire, PB_FIXED64);
    assert_int_equal(f.value, UINT64_C(0x0102030405060708));
    assert_int_equal(pb_next(&r, &f), 1);
    assert_int_equal(f.number, 16);
    assert_int_equal(f.wire, PB_BYTES);
    assert_int_equal(f.size, 3);
    assert_memory_equal(f.data, "abc", 3);
    assert_int_equal(pb_next(&r, &f), 0);
    assert_int_equal(pb_next(&r, &f), 0);
    text_fini(&w);
    r = pb_reader(NULL, 0);
    assert_int_equal(pb_next(&r, &f), 0);
}

static void check_damaged(const char *bytes, size_t size)
{
    /* A copy of the exact size, so that a sanitizer sees every byte read past the end. */
    uint8_t *copy = malloc(size + 1);
    memcpy(copy, bytes, size);
    copy = realloc(copy, size);
    struct pb_reader r = pb_reader(copy, size);
    struct pb_field f;
    assert_int_equal(pb_next(&r, &f), -1);
    free(copy);
}

TEST(damage)
{
#define DAMAGED(text) check_damaged(text, sizeof text - 1)
    DAMAGED("\x08");                                                     /* no value */
    DAMAGED("\x80");                                                     /* half a tag */
    DAMAGED("\x00\x01");                                                 /* field 0 */
    DAMAGED("\x0d\x01\x02\x03");                                         /* fixed32 cut */
    DAMAGED("\x09\x01\x02\x03\x04\x05\x06\x07");                         /* fixed64 cut */
    DAMAGED("\x0a\x03\x01\x02");                                         /* bytes cut */
    DAMAGED("\x0a");                                                     /* no length */
    DAMAGED("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01");         /* a length of 2^64 - 1 */
    DAMAGED("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01");             /* 2^63 - 1 */
    DAMAGED("\x0b\x0c");                                                 /* a group */
    DAMAGED("\x0e\x01");                                                 /* wire type 6 */
    DAMAGED("\x0f\x01");                                                 /* wire type 7 */
    DAMAGED("\x80\x80\x80\x80\x10\x01");                                 /* a number above 2^29 - 1 */
    DAMAGED("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01\x01\x01"); /* an endless tag */
#undef DAMAGED
}

TEST(defaults_are_left_out)
{
    struct text w = {0};
    pb_put_varint(&w, 1, 0);
    pb_put_fixed64(&w, 3, 0);
    pb_put_bytes(&w, 4, NULL, 0);
    assert_null(pb_put_packed(&w, 6, 0, 8));
    assert_int_equal(w.size, 0);
    assert_false(w.failed);
    text_fini(&w);
}

TEST(all_equal_finds_any_difference)
{
    enum { N = 67 };
    uint32_t v[N];
    for (uint32_t n = 0; n <= N; n++) {
        for (uint32_t i = 0; i < N; i++)
            v[i] = 0x01010102;
        assert_true(pb_all_equal(v, n, 4));
        for (uint32_t i = 0; n > 1 && i < n; i++) {
            v[i] ^= 0x80000000u;
            assert_false(pb_all_equal(v, n, 4));
            v[i] ^= 0x80000000u;
        }
    }
    /* 0 and -0 differ in their bits; a NaN equals itself. */
    assert_false(pb_all_equal((const double[]){0.0, -0.0}, 2, 8));
    assert_true(pb_all_equal((const double[]){(double)NAN, (double)NAN}, 2, 8));
}

TEST(accessors_spread_one_element)
{
    const uint8_t bytes[] = {0xff, 1, 0, 0, 0, 0, 0, 0xf0, 0x3f, 2, 0, 0, 0, 0, 0, 0, 0x40};
    struct pb_array many = {bytes + 1, 2}, one = {bytes + 1, 1};
    assert_int_equal(pb_u64(&many, 1), UINT64_C(0x4000000000000002));
    assert_int_equal(pb_u64(&one, 1), UINT64_C(0x3ff0000000000001));
    assert_int_equal(pb_u32(&many, 1), 0x3ff00000);
    assert_int_equal(pb_u32(&one, 9), 1);
    assert_int_equal(pb_u8(&one, 1000000), 1);
    assert_true(pb_f64(&one, 3) > 1.0 && pb_f64(&one, 3) < 1.1);
}

TEST(writer_that_ran_out_of_memory_stays_so)
{
    struct text w = {0};
    pb_put_varint(&w, 1, 1);
    size_t before = w.size;
    assert_null(text_reserve(&w, SIZE_MAX - 4));
    assert_true(w.failed);
    pb_put_varint(&w, 1, 1);
    pb_put_bytes(&w, 2, "x", 1);
    assert_int_equal(w.size, before);
    text_fini(&w);
    assert_null(w.bytes);
    assert_false(w.failed);
}

TEST(writer_grows)
{
    struct text w = {0};
    for (uint32_t i = 0; i < 10000; i++) {
        uint8_t *at = pb_put_packed(&w, 3, 3, 4);
        memcpy(at, (const uint32_t[]){i, i + 1, i + 2}, 12);
    }
    struct pb_reader r = pb_reader(w.bytes, w.size);
    struct pb_field f;
    for (uint32_t i = 0; i < 10000; i++) {
        assert_int_equal(pb_next(&r, &f), 1);
        struct pb_array a = {f.data, (uint32_t)f.size / 4};
        assert_int_equal(a.n, 3);
        assert_int_equal(pb_u32(&a, 2), i + 2);
    }
    assert_int_equal(pb_next(&r, &f), 0);
    text_fini(&w);
}
