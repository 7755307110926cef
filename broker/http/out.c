#include "broker/http/out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"
#include "proto/base/utf8.h"

void out_fini(struct out *self)
{
    free(self->data);
    *self = (struct out){0};
}

void out_bytes(struct out *self, const char *data, size_t size)
{
    if (self->capacity - self->size < size) {
        self->capacity = (self->capacity + size + 4096) * 2;
        self->data = need_resize(self->data, self->capacity, 1);
    }
    memcpy(self->data + self->size, data, size);
    self->size += size;
}

void out_text(struct out *self, const char *text)
{
    out_bytes(self, text, strlen(text));
}

void out_u64(struct out *self, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    out_bytes(self, digits + at, sizeof digits - at);
}

void out_real(struct out *self, double value)
{
    char text[40];
    if (isnan(value)) {
        out_text(self, "NaN");
    } else if (isinf(value)) {
        out_text(self, value > 0 ? "+Inf" : "-Inf");
    } else if (value >= 0 && value < 9e15 && value == floor(value)) {
        out_u64(self, (uint64_t)value);
    } else {
        int size = snprintf(text, sizeof text, "%.15g", value);
        out_bytes(self, text, (size_t)size);
    }
}

void out_escaped(struct out *self, const char *text, bool quoted)
{
    for (const char *s = text; *s;) {
        size_t plain = strcspn(s, quoted ? "\\\n\"" : "\\\n");
        size_t at = self->size;
        out_bytes(self, s, plain);
        utf8_clean(self->data + at, plain);
        s += plain;
        if (*s) {
            out_text(self, *s == '\n' ? "\\n" : *s == '"' ? "\\\"" : "\\\\");
            s++;
        }
    }
}
