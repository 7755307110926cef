/* See json_map.h. */
#include "proto/base/json_map.h"

#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"

static size_t room_of(const struct json_row *row)
{
    return row->most ? row->most : row->size / row->element_size;
}

/* ---- writing text ---- */

static void write_list(struct json *out, const struct json_row *row, const void *base)
{
    uint32_t n = *(const uint32_t *)((const char *)base + row->count_offset);
    const char *at = (const char *)base + row->offset, *list = row->most ? *(const char *const *)(const void *)at : at;
    json_open(out, '[');
    for (uint32_t i = 0; list && i < n && i < room_of(row); i++) {
        json_open(out, '{');
        json_map_write(out, row->rows, list + i * row->element_size);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static void write_value(struct json *out, const struct json_row *row, const void *base)
{
    const void *at = (const char *)base + row->offset;
    unsigned word;
    switch (row->kind) {
    case JSON_KIND_TEXT:
        json_string(out, at);
        break;
    case JSON_KIND_REAL:
        json_number(out, *(const double *)at);
        break;
    case JSON_KIND_U64:
        json_unsigned(out, *(const uint64_t *)at);
        break;
    case JSON_KIND_U32:
        json_unsigned(out, *(const uint32_t *)at);
        break;
    case JSON_KIND_I32:
        json_signed(out, *(const int32_t *)at);
        break;
    case JSON_KIND_BOOL:
        json_boolean(out, *(const bool *)at);
        break;
    case JSON_KIND_WORD:
        memcpy(&word, at, sizeof word);
        json_string(out, word < row->n_words ? row->words[word] : "unknown");
        break;
    case JSON_KIND_OBJECT:
        json_open(out, '{');
        json_map_write(out, row->rows, at);
        json_close(out, '}');
        break;
    case JSON_KIND_LIST:
        write_list(out, row, base);
        break;
    }
}

void json_map_write(struct json *out, const struct json_row *rows, const void *base)
{
    for (; rows->name; rows++) {
        json_key(out, rows->name);
        write_value(out, rows, base);
    }
}

struct json_object *json_map_object(const struct json_row *rows, const void *base)
{
    struct json out = {0};
    json_open(&out, '{');
    json_map_write(&out, rows, base);
    json_close(&out, '}');
    char *text = json_take(&out);
    struct json_object *object = text ? json_tokener_parse(text) : NULL;
    free(text);
    return object;
}

/* ---- reading ---- */

static bool is_number(struct json_object *value)
{
    return json_object_is_type(value, json_type_double) || json_object_is_type(value, json_type_int);
}

double json_map_real(struct json_object *value, double absent)
{
    double number = is_number(value) ? json_object_get_double(value) : absent;
    return isfinite(number) ? number : absent;
}

char *json_need(struct json *self)
{
    char *text = json_take(self);
    if (!text)
        need_fail(self->out.size);
    return text;
}

double json_map_number(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;
    json_object_object_get_ex(object, name, &value);
    return json_map_real(value, NAN);
}

const char *json_map_text(struct json_object *object, const char *name)
{
    struct json_object *value = NULL;
    json_object_object_get_ex(object, name, &value);
    return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
}

/* Reads an integer within 0..most. */
static bool read_unsigned(struct json_object *value, uint64_t most, uint64_t *out)
{
    bool integer = json_object_is_type(value, json_type_int);
    double real = json_map_real(value, 0);
    uint64_t number = integer          ? json_object_get_uint64(value)
                      : real <= 0      ? 0
                      : real >= 0x1p64 ? UINT64_MAX
                                       : (uint64_t)real;
    *out = number < most ? number : most;
    return integer && number <= most && real >= 0;
}

static bool read_word(struct json_object *value, const struct json_row *row, void *at)
{
    const char *text = json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
    uint32_t i = 0;
    while (i < row->n_words && strcmp(text, row->words[i]) != 0)
        i++;
    int found = i < row->n_words ? (int)i : (int)row->absent;
    memcpy(at, &found, sizeof found);
    return i < row->n_words;
}

static bool read_list(struct json_object *value, const struct json_row *row, void *base)
{
    bool ok = json_object_is_type(value, json_type_array);
    size_t n = ok ? json_object_array_length(value) : 0, room = room_of(row);
    char *at = (char *)base + row->offset, *list = at;
    uint32_t *count = (uint32_t *)(void *)((char *)base + row->count_offset);
    ok = ok && n <= room;
    n = n < room ? n : room;
    if (row->most)
        *(void **)(void *)at = list = n ? need_alloc(n * row->element_size) : NULL;
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        struct json_object *one = json_object_array_get_idx(value, i);
        if (row->most && !json_object_is_type(one, json_type_object))
            ok = false;
        else
            ok = json_map_read(one, row->rows, list + row->element_size * (*count)++) && ok;
    }
    return ok;
}

static bool read_value(struct json_object *value, const struct json_row *row, void *base)
{
    void *at = (char *)base + row->offset;
    uint64_t number;
    bool ok;
    switch (row->kind) {
    case JSON_KIND_TEXT:
        ok = json_object_is_type(value, json_type_string);
        snprintf(at, row->size, "%s", ok ? json_object_get_string(value) : "");
        return ok;
    case JSON_KIND_REAL:
        *(double *)at = json_map_real(value, row->absent);
        return !value || is_number(value);
    case JSON_KIND_U64:
        return read_unsigned(value, UINT64_MAX, at);
    case JSON_KIND_U32:
        ok = read_unsigned(value, UINT32_MAX, &number);
        *(uint32_t *)at = (uint32_t)number;
        return ok;
    case JSON_KIND_I32:
        ok = read_unsigned(value, INT32_MAX, &number);
        *(int32_t *)at = (int32_t)number;
        return ok;
    case JSON_KIND_BOOL:
        ok = json_object_is_type(value, json_type_boolean);
        *(bool *)at = ok && json_object_get_boolean(value);
        return ok;
    case JSON_KIND_WORD:
        return read_word(value, row, at);
    case JSON_KIND_OBJECT:
        return json_map_read(value, row->rows, at);
    case JSON_KIND_LIST:
        return read_list(value, row, base);
    }
    return false;
}

bool json_map_read(struct json_object *object, const struct json_row *rows, void *base)
{
    bool ok = json_object_is_type(object, json_type_object);
    for (; rows->name; rows++) {
        struct json_object *value = NULL;
        bool present = json_object_object_get_ex(object, rows->name, &value);
        ok = read_value(value, rows, base) && present && ok;
    }
    return ok;
}
