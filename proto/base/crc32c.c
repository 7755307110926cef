#include "proto/base/crc32c.h"

#include <isa-l/crc.h>

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
    const unsigned char *p = data;
    crc = ~crc;
    while (size > 0) {
        int part = size > (1u << 30) ? 1 << 30 : (int)size;
        crc = crc32_iscsi((unsigned char *)(uintptr_t)p, part, crc);
        p += part;
        size -= (size_t)part;
    }
    return ~crc;
}
