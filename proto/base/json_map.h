/* Maps structs to JSON objects and back by a table of rows: one table serves both directions.
 *
 *     static const struct json_row point_rows[] = {JSON_ROW(struct point, count), JSON_REAL(struct point, rate, NAN), {0}};
 *
 * A table ends with {0}. JSON_ROW takes the kind from the member's type and accepts char arrays, double, uint64_t, uint32_t,
 * int32_t and bool; any other type does not compile. Compiled apart from the rest of proto/base, because the client library does
 * not link json-c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/json.h"

struct json_object; /* json-c */

enum json_kind {
    JSON_KIND_TEXT, /* a char array */
    JSON_KIND_REAL, /* null unless finite */
    JSON_KIND_U64,
    JSON_KIND_U32,
    JSON_KIND_I32, /* such as a process id: a negative number is out of range and reads as 0 */
    JSON_KIND_BOOL,
    JSON_KIND_WORD,   /* an enum, written as a word */
    JSON_KIND_OBJECT, /* a struct */
    JSON_KIND_LIST    /* an array of structs, or a pointer to one, and a uint32_t that counts the elements in use */
};

struct json_row {
    const char *name;
    enum json_kind kind;
    size_t offset, size; /* of the member, in bytes */
    double absent;       /* value of a missing real, or index of a missing word */
    const char *const *words;
    uint32_t n_words;
    const struct json_row *rows; /* of the struct, or of one element of the list */
    size_t element_size, count_offset;
    uint32_t most; /* elements that a pointer may lead to; 0: the member is the array itself */
};

#define JSON_MEMBER(owner, path) (((owner *)0)->path)
#define JSON_KIND_OF(owner, path)                                                                                      \
    _Generic(&JSON_MEMBER(owner, path),                                                                                \
        char(*)[sizeof JSON_MEMBER(owner, path)]: JSON_KIND_TEXT,                                                      \
        double *: JSON_KIND_REAL,                                                                                      \
        uint64_t *: JSON_KIND_U64,                                                                                     \
        uint32_t *: JSON_KIND_U32,                                                                                     \
        int32_t *: JSON_KIND_I32,                                                                                      \
        bool *: JSON_KIND_BOOL)
#define JSON_PLACE(owner, path) .offset = offsetof(owner, path), .size = sizeof JSON_MEMBER(owner, path)

/* A member under another name, such as a member of a member. A missing real reads as `none`. */
#define JSON_ROW_AS(title, owner, path, none)                                                                          \
    {                                                                                                                  \
        .name = (title), .kind = JSON_KIND_OF(owner, path), JSON_PLACE(owner, path), .absent = (none)                  \
    }
#define JSON_ROW(owner, member) JSON_ROW_AS(#member, owner, member, 0)
#define JSON_REAL(owner, member, none) JSON_ROW_AS(#member, owner, member, none)
/* An enum as a word: list is an array of words, indexed by the enum; an unknown word reads as index `none`. */
#define JSON_WORD(owner, member, list, none)                                                                           \
    {                                                                                                                  \
        .name = #member, .kind = JSON_KIND_WORD, JSON_PLACE(owner, member), .absent = (none), .words = (list),         \
        .n_words = sizeof(list) / sizeof *(list)                                                                       \
    }
#define JSON_OBJECT(owner, member, table)                                                                              \
    {                                                                                                                  \
        .name = #member, .kind = JSON_KIND_OBJECT, JSON_PLACE(owner, member), .rows = (table)                          \
    }
#define JSON_LIST_AS(title, owner, path, count, table)                                                                 \
    {                                                                                                                  \
        .name = (title), .kind = JSON_KIND_LIST, JSON_PLACE(owner, path), .rows = (table),                             \
        .element_size = sizeof *JSON_MEMBER(owner, path), .count_offset = offsetof(owner, count)                       \
    }
#define JSON_LIST(owner, member, count, table) JSON_LIST_AS(#member, owner, member, count, table)
/* The same for a pointer, which may be NULL. Reading allocates the elements, for free(); what is no object is left out. */
#define JSON_POINTER(owner, member, count, table, limit)                                                               \
    {                                                                                                                  \
        .name = #member, .kind = JSON_KIND_LIST, JSON_PLACE(owner, member), .rows = (table),                           \
        .element_size = sizeof *JSON_MEMBER(owner, member), .count_offset = offsetof(owner, count), .most = (limit)    \
    }

/* Writes the members into an object that is open. */
void json_map_write(struct json *out, const struct json_row *rows, const void *base);
/* Gives a tree of json-c, for text with indentation; NULL: out of memory. */
struct json_object *json_map_object(const struct json_row *rows, const void *base);
/* Sets every member. False: a member is missing, of another type or out of range. Such a member gets its absent value, a number
 * out of range the nearest one in range, and a list that is too long the elements that fit. A real may be null. object may be
 * NULL, or a value that is no object. */
bool json_map_read(struct json_object *object, const struct json_row *rows, void *base);
/* As json_take. Without memory the process ends (need.h). */
char *json_need(struct json *self);
/* Returns the value if it is a finite number, else `absent`. */
double json_map_real(struct json_object *value, double absent);
/* Return a member of an object, which may be NULL: NAN or "" if it is missing or of another type. */
double json_map_number(struct json_object *object, const char *name);
const char *json_map_text(struct json_object *object, const char *name);
