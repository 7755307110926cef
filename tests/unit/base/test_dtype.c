#include "proto/base/dtype.h"

#include "tests/support/test.h"

TEST(every_type_is_found_by_its_name)
{
#define CHECK(name, code, text, bytes, integer)                                                                        \
    assert_int_equal(dtype_by_name(text), code);                                                                       \
    assert_string_equal(dtype_name(code), text);                                                                       \
    assert_int_equal(dtype_size(code), bytes);                                                                         \
    assert_int_equal(dtype_is_integer(code), integer);
    RP_DTYPE_LIST(CHECK)
#undef CHECK
}

TEST(other_types_do_not_exist)
{
    const int32_t codes[] = {0, -1, 16, 1000, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        assert_int_equal(dtype_size(codes[i]), 0);
        assert_null(dtype_name(codes[i]));
        assert_false(dtype_is_integer(codes[i]));
        assert_true(dtype_row_bytes(codes[i], 0, NULL) == DTYPE_NO_ROW);
    }
    assert_int_equal(dtype_by_name("float"), -1);
    assert_int_equal(dtype_by_name("Float32"), -1);
    assert_int_equal(dtype_by_name("float320"), -1);
    assert_int_equal(dtype_by_name(""), -1);
    assert_int_equal(dtype_by_name(NULL), -1);
}

TEST(row_bytes)
{
    assert_int_equal(dtype_row_bytes(RP_DTYPE_FLOAT64, 0, NULL), 8);
    assert_int_equal(dtype_row_bytes(RP_DTYPE_UINT8, 3, (uint32_t[]){84, 84, 4}), 84 * 84 * 4);
    assert_int_equal(dtype_row_bytes(RP_DTYPE_COMPLEX128, 2, (uint32_t[]){3, 5}), 240);
    assert_int_equal(dtype_row_bytes(RP_DTYPE_INT16, 8, (uint32_t[]){1, 1, 1, 1, 1, 1, 1, 7}), 14);
}

TEST(row_bytes_out_of_range)
{
    const uint32_t ones[RP_MAX_RANK + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_int_equal(dtype_row_bytes(RP_DTYPE_INT8, RP_MAX_RANK, ones), 1);
    assert_true(dtype_row_bytes(RP_DTYPE_INT8, RP_MAX_RANK + 1, ones) == DTYPE_NO_ROW);
    assert_int_equal(dtype_row_bytes(RP_DTYPE_INT8, 3, (uint32_t[]){4, 0, 4}), 0);
    assert_int_equal(dtype_row_bytes(RP_DTYPE_INT8, 1, (uint32_t[]){1u << 30}), 1u << 30);
    assert_true(dtype_row_bytes(RP_DTYPE_INT8, 1, (uint32_t[]){(1u << 30) + 1}) == DTYPE_NO_ROW);
    assert_true(dtype_row_bytes(RP_DTYPE_INT16, 1, (uint32_t[]){1u << 30}) == DTYPE_NO_ROW);
    /* A product that is 0 modulo 2^64. */
    assert_true(dtype_row_bytes(RP_DTYPE_INT8, 3, (uint32_t[]){1u << 30, 1u << 30, 1u << 4}) == DTYPE_NO_ROW);
    uint32_t all[RP_MAX_RANK];
    for (uint32_t i = 0; i < RP_MAX_RANK; i++)
        all[i] = UINT32_MAX;
    assert_true(dtype_row_bytes(RP_DTYPE_COMPLEX128, RP_MAX_RANK, all) == DTYPE_NO_ROW);
}

TEST(fields)
{
    const uint32_t column[] = {2, 3}, any = 0, four = 4;
    const struct field_type plain = dtype_field("f", RP_DTYPE_INT8, &any, 2, column),
                            fixed = dtype_field("f", RP_DTYPE_INT8, &four, 2, column),
                            squeezed = dtype_field("f", RP_DTYPE_INT8, NULL, 2, column),
                            vectors = dtype_field("f", RP_DTYPE_INT8, &any, 1, column + 1);
    ok(dtype_check_field(&plain, false, &plain, "t", &err));
    ok(dtype_check_field(&fixed, false, &plain, "t", &err));
    ok(dtype_check_field(&fixed, false, &fixed, "t", &err));
    ok(dtype_check_field(&squeezed, true, &squeezed, "t", &err));
    must_fail(dtype_check_field(&plain, false, &fixed, "t", &err), RP_INVALID_ARGUMENT,
              "field 'f' has shape [any,2,3], table 't' wants [4,2,3]");
    /* Any number of steps is not any number of what is no step. */
    must_fail(dtype_check_field(&squeezed, true, &vectors, "t", &err), RP_INVALID_ARGUMENT,
              "field 'f' has shape [2,3], table 't' wants [any,3]");
}
