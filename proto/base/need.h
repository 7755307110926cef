/* Small memory that a program cannot go on without: the records, names and lists of the broker and of the launcher. If there is none
 * left, the process ends with a sentence; the journal is there for that. Never for memory whose size a peer or a file chooses (chunks,
 * batches, replies), and never in libreplay: those report RP_NO_MEMORY. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Ends the process: it cannot get this many bytes. */
_Noreturn void need_fail(size_t size);

/* Returns size bytes of zeros. */
void *need_alloc(size_t size) __attribute__((malloc, returns_nonnull));

/* Resizes an array, which may be NULL, to n elements of size bytes; new elements are not cleared. */
void *need_resize(void *array, size_t n, size_t size) __attribute__((returns_nonnull));

/* Returns the array with room for one more than its n elements: if it is full, it gets twice the capacity. */
static inline void *need_room(void *array, uint32_t n, uint32_t *capacity, size_t size)
{
    if (n < *capacity)
        return array;
    *capacity = *capacity ? 2 * *capacity : 16;
    return need_resize(array, *capacity, size);
}

/* Returns a copy of text. */
char *need_text(const char *text) __attribute__((malloc, returns_nonnull));

/* Returns the formatted text. */
char *need_print(const char *format, ...) __attribute__((format(printf, 1, 2), malloc, returns_nonnull));

/* ---- a list of words that grows: command lines, environments, overrides, names ---- */

/* Zero-initialised. */
struct words {
    char **list; /* NULL-terminated: words_free. NULL: there are no words yet */
    uint32_t count;
};
void words_clear(struct words *self);
void words_free(char ***list);
/* Takes the word. */
void words_take(struct words *self, char *word);
#define words_addf(words, ...) words_take((words), need_print(__VA_ARGS__))
void words_add(struct words *self, const char *word);
/* Adds the words of a NULL-terminated list, which may be NULL. */
void words_add_list(struct words *self, const char *const *list);
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define words_put(words, ...) words_add_list((words), WORDS(__VA_ARGS__))
