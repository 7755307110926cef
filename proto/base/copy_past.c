#include "proto/base/copy_past.h"

#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

void copy_past(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
#ifdef __SSE2__
    size_t head = -(uintptr_t)out % 64;
    if (bytes >= COPY_PAST_LEAST) {
        _mm_sfence(); /* these stores could be seen before those that the caller made first, such as a stamp */
        memcpy(out, in, head);
        for (out += head, in += head, bytes -= head; bytes >= 64; out += 64, in += 64, bytes -= 64)
            for (size_t i = 0; i < 64; i += 16)
                _mm_stream_si128((__m128i *)(void *)(out + i),
                                 _mm_loadu_si128((const __m128i *)(const void *)(in + i)));
        _mm_sfence();
    }
#endif
    memcpy(out, in, bytes);
}
