#include "proto/base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"

void text_fini(struct text *self)
{
    free(self->data);
    *self = (struct text){0};
}

static bool text_grow(struct text *self, size_t n)
{
    if (self->fixed || n > SIZE_MAX / 2 - self->size)
        return false;
    size_t capacity = self->capacity < 128 ? 256 : self->capacity * 2;
    if (capacity < self->size + n)
        capacity = self->size + n;
    char *data = realloc(self->data, capacity);
    if (!data)
        return false;
    self->data = data;
    self->capacity = capacity;
    return true;
}

void *text_reserve(struct text *self, size_t n)
{
    if (self->failed)
        return NULL;
    if (n > self->capacity - self->size && !text_grow(self, n)) {
        self->failed = true;
        return NULL;
    }
    char *at = self->data + self->size;
    self->size += n;
    return at;
}

void text_put(struct text *self, const void *data, size_t n)
{
    void *at = text_reserve(self, n);
    if (at && n)
        memcpy(at, data, n);
}

void text_add(struct text *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        return;
    char *at = text_reserve(self, (size_t)n + 1);
    if (!at)
        need_fail((size_t)n);
    va_start(args, format);
    vsnprintf(at, (size_t)n + 1, format, args);
    va_end(args);
    self->size--;
}

void text_append(char *out, size_t size, const char *format, ...)
{
    size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, size - used, format, args);
    va_end(args);
}

const char *text_get(const struct text *self)
{
    return self->data ? self->data : "";
}
