/* SipHash against the values of its reference implementation. */

#include "proto/base/siphash.h"

#include "tests/support/test.h"

/* Key 00 01 .. 0f, messages 00 01 .. of 0, 1, 7, 8 and 15 bytes. */
TEST(reference)
{
    static const struct {
        size_t size;
        uint64_t hash;
    } rows[] = {{0, UINT64_C(0x726fdb47dd0e0e31)},
                {1, UINT64_C(0x74f839c593dc67fd)},
                {7, UINT64_C(0xab0200f58b01d137)},
                {8, UINT64_C(0x93f5f5799a932462)},
                {15, UINT64_C(0xa129ca6149be45e5)}};
    uint8_t key[16], text[16];
    for (uint8_t i = 0; i < 16; i++)
        key[i] = text[i] = i;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(siphash(key, text, rows[i].size), rows[i].hash);
}
