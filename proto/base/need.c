#include "proto/base/need.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nothing is freed or flushed: a handler of exit() may need memory, too. */
_Noreturn void need_fail(size_t size)
{
    fprintf(
        stderr,
        "out of memory: this process cannot get %zu bytes more and ends; see its memory limit (ulimit -v, cgroup)\n",
        size);
    _Exit(1);
}

void *need_alloc(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (!memory)
        need_fail(size);
    return memory;
}

void *need_resize(void *array, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        need_fail(SIZE_MAX);
    array = realloc(array, bytes ? bytes : 1);
    if (!array)
        need_fail(bytes);
    return array;
}

char *need_text(const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(need_alloc(size), text, size);
}

char *need_print(const char *format, ...)
{
    va_list arguments;
    char *text;
    va_start(arguments, format); // NOLINT(clang-analyzer-valist.Uninitialized)
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        need_fail(strlen(format));
    return text;
}

/* ---- lists of words ---- */

void words_free(char ***list)
{
    for (char **word = *list; word && *word; word++)
        free(*word);
    free(*list);
    *list = NULL;
}

void words_take(struct words *self, char *word)
{
    self->list = need_resize(self->list, self->count + 2, sizeof *self->list);
    self->list[self->count++] = word;
    self->list[self->count] = NULL;
}

void words_add(struct words *self, const char *word)
{
    words_take(self, need_text(word));
}

void words_add_list(struct words *self, const char *const *list)
{
    for (; list && *list; list++)
        words_add(self, *list);
}

void words_clear(struct words *self)
{
    words_free(&self->list);
    self->count = 0;
}
