#include "proto/base/utf8.h"

#include <stdint.h>

/* Returns the length of the valid sequence at the start of text, or 0. */
static size_t sequence(const uint8_t *text, size_t size)
{
    uint8_t first = text[0];
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || length > size)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    /* Overlong forms, surrogates, and code points past U+10FFFF. */
    if ((first == 0xE0 && text[1] < 0xA0) || (first == 0xED && text[1] > 0x9F) || (first == 0xF0 && text[1] < 0x90) ||
        (first == 0xF4 && text[1] > 0x8F))
        return 0;
    return length;
}

bool utf8_valid(const char *text, size_t size)
{
    const uint8_t *at = (const uint8_t *)text;
    while (size) {
        size_t length = sequence(at, size);
        if (!length)
            return false;
        at += length;
        size -= length;
    }
    return true;
}

void utf8_clean(char *text, size_t size)
{
    uint8_t *at = (uint8_t *)text;
    while (size) {
        size_t length = sequence(at, size);
        if (!length) {
            *at = '?';
            length = 1;
        }
        at += length;
        size -= length;
    }
}
