/* SipHash-2-4: a keyed hash of 64 bits. Whoever does not know the key cannot find messages with a given hash, and with a key
 * that is known, finding one takes about 2^64 attempts. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t siphash(const uint8_t key[16], const void *data, size_t size);
