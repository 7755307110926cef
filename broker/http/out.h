/* A growing text of numbers and words. Faster than printf: a scrape has thousands of lines. */
#ifndef BROKER_HTTP_OUT_H
#define BROKER_HTTP_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts zero-initialised. */
struct out {
    char *data;
    size_t size, capacity;
};

void out_fini(struct out *self);
void out_bytes(struct out *self, const char *data, size_t size);
void out_text(struct out *self, const char *text);
void out_u64(struct out *self, uint64_t value);
/* Whole numbers as such, others with 15 digits; NaN, +Inf and -Inf as the text format writes them. */
void out_real(struct out *self, double value);
/* A label's value or a help text: escapes backslash, newline, and (in a value) the quote; bytes that are no UTF-8 become question marks. */
void out_escaped(struct out *self, const char *text, bool quoted);

#endif
