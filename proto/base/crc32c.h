/* CRC-32C (Castagnoli), computed by ISA-L with the best instructions that the processor has. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Returns the checksum of the bytes. Start with crc 0; pass the result in again to continue. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);
