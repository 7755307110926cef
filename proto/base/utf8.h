/* UTF-8. Protobuf requires it in string fields: implementations in other languages refuse a message with anything else. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the length of the valid sequence at the start of text, or 0. size > 0. */
size_t utf8_sequence(const char *text, size_t size);
/* Returns the code point at the start of a terminated text, and sets the length of its sequence; 0: there is no valid one. */
uint32_t utf8_point(const char *text, size_t *length);
/* Returns the size without an incomplete sequence at the end, for a text that was cut. */
size_t utf8_whole(const char *text, size_t size);
bool utf8_valid(const char *text, size_t size);
/* Replaces every byte that is not part of a valid sequence by '?'. */
void utf8_clean(char *text, size_t size);
