/* Base64 (RFC 4648, with padding). */
#ifndef AGENT_LAUNCH_HOST_BASE64_H
#define AGENT_LAUNCH_HOST_BASE64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the text for so many bytes, without the terminating NUL. */
static inline size_t host_base64_length(size_t size)
{
    return (size + 2) / 3 * 4;
}
/* Writes host_base64_length(size) characters and a NUL. */
void host_base64_encode(const uint8_t *bytes, size_t size, char *out);
/* Writes at most length / 4 * 3 bytes and their number. False: the text is not base64. */
bool host_base64_decode(const char *text, size_t length, uint8_t *out, size_t *size);

#endif
