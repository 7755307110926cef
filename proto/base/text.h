/* The growing buffer: text for people, JSON (json.h) and protobuf (proto/wire/pb.h) are written into it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "replay/error.h"

/* Starts zero-initialised; data is malloc'ed and may be taken over by the caller. Setting size to 0 keeps the memory for the next
 * contents. */
struct text {
    union {
        char *data;
        uint8_t *bytes;
    };
    size_t size, capacity;
    bool failed; /* there was no memory: all further writes do nothing */
    bool fixed;  /* data belongs to somebody else and does not grow: what does not fit fails */
};
void text_fini(struct text *self);
/* Makes room for n more bytes and returns a pointer to them; size grows by n. NULL: `failed` is set. */
void *text_reserve(struct text *self, size_t n);
void text_put(struct text *self, const void *data, size_t n);
/* Adds a formatted text and terminates it. Without memory the process ends (need.h): not for libreplay. */
void text_add(struct text *self, const char *format, ...) RP_PRINTF(2, 3);
/* Adds a formatted text to the end of a text that has room for `size` bytes; what does not fit is left out. */
void text_append(char *out, size_t size, const char *format, ...) RP_PRINTF(3, 4);
/* Returns the text of text_add; "" if it is empty. */
const char *text_get(const struct text *self);

/* True if the text ends with `end`. */
static inline bool text_ends(const char *text, const char *end)
{
    size_t size = strlen(text), n = strlen(end);
    return size >= n && strcmp(text + size - n, end) == 0;
}
