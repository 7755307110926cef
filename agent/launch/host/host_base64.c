#include "agent/launch/host/host_base64.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void host_base64_encode(const uint8_t *bytes, size_t size, char *out)
{
    for (size_t i = 0; i < size; i += 3) {
        size_t rest = size - i;
        uint32_t word = (uint32_t)bytes[i] << 16;
        word |= rest > 1 ? (uint32_t)bytes[i + 1] << 8 : 0;
        word |= rest > 2 ? (uint32_t)bytes[i + 2] : 0;
        *out++ = digits[word >> 18];
        *out++ = digits[word >> 12 & 63];
        *out++ = digits[word >> 6 & 63];
        *out++ = digits[word & 63];
        if (rest < 3)
            out[-1] = '=';
        if (rest < 2)
            out[-2] = '=';
    }
    *out = '\0';
}

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool host_base64_decode(const char *text, size_t length, uint8_t *out, size_t *size)
{
    size_t padding = 0, n = 0;
    *size = 0;
    if (length % 4 != 0)
        return false;
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=')
        padding++;
    for (size_t i = 0; i < length; i += 4) {
        uint32_t word = 0;
        for (size_t k = 0; k < 4; k++) {
            int value = i + k >= length - padding ? 0 : value_of(text[i + k]);
            if (value < 0)
                return false;
            word = word << 6 | (uint32_t)value;
        }
        out[n++] = (uint8_t)(word >> 16);
        out[n++] = (uint8_t)(word >> 8);
        out[n++] = (uint8_t)word;
    }
    *size = n - padding;
    return true;
}
