/* CRC-32C (Castagnoli), computed by ISA-L with whatever the processor offers. */
#ifndef PROTO_CRC32C_H
#define PROTO_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Begin with crc 0; feed the result back in to go on. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);

#endif
