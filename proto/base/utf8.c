#include "proto/base/utf8.h"

size_t utf8_sequence(const char *text, size_t size)
{
    const uint8_t *at = (const uint8_t *)text;
    uint8_t first = at[0];
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || length > size)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    /* Overlong forms, surrogates, and code points past U+10FFFF. */
    if ((first == 0xE0 && at[1] < 0xA0) || (first == 0xED && at[1] > 0x9F) || (first == 0xF0 && at[1] < 0x90) ||
        (first == 0xF4 && at[1] > 0x8F))
        return 0;
    return length;
}

uint32_t utf8_point(const char *text, size_t *length)
{
    size_t n = *length = utf8_sequence(text, 4); /* the end of the text ends a sequence, too */
    uint32_t point = (uint8_t)text[0] & (n > 1 ? 0x7fu >> n : 0x7f);
    for (size_t i = 1; i < n; i++)
        point = point << 6 | ((uint8_t)text[i] & 0x3f);
    return point;
}

size_t utf8_whole(const char *text, size_t size)
{
    size_t start = size;
    while (start > 0 && size - start < 4 && ((uint8_t)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return size;
    uint8_t first = (uint8_t)text[--start];
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    return size - start < length ? start : size;
}

bool utf8_valid(const char *text, size_t size)
{
    for (size_t length; size; text += length, size -= length)
        if (!(length = utf8_sequence(text, size)))
            return false;
    return true;
}

void utf8_clean(char *text, size_t size)
{
    for (size_t length; size; text += length, size -= length)
        if (!(length = utf8_sequence(text, size))) {
            *text = '?';
            length = 1;
        }
}
