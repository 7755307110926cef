#include "proto/base/siphash.h"

#include <string.h>

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static void rounds(uint64_t v[4], uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static void take(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    rounds(v, 2);
    v[0] ^= word;
}

/* Little-endian machines only, as the wire format. */
uint64_t siphash(const uint8_t key[16], const void *data, size_t size)
{
    uint64_t k[2], word, last = (uint64_t)size << 56;
    const uint8_t *at = data;
    memcpy(k, key, sizeof k);
    uint64_t v[4] = {k[0] ^ UINT64_C(0x736f6d6570736575), k[1] ^ UINT64_C(0x646f72616e646f6d),
                     k[0] ^ UINT64_C(0x6c7967656e657261), k[1] ^ UINT64_C(0x7465646279746573)};
    for (size_t left = size; left >= sizeof word; left -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        take(v, word);
    }
    for (uint32_t i = 0; i < size % sizeof word; i++)
        last |= (uint64_t)at[i] << (8 * i);
    take(v, last);
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
