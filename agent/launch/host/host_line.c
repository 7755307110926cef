/* Objects of a line: what is written into them, and what is taken out of them, with nothing believed. */
#include "agent/launch/host/host_line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/host/host_base64.h"

struct json_object *host_line_new(const char *type)
{
    struct json_object *line = json_object_new_object();
    host_line_add_text(line, "type", type);
    return line;
}

void host_line_add_text(struct json_object *line, const char *name, const char *text)
{
    if (line)
        json_object_object_add(line, name, json_object_new_string(text));
}

void host_line_add_number(struct json_object *line, const char *name, int64_t value)
{
    if (line)
        json_object_object_add(line, name, json_object_new_int64(value));
}

void host_line_add_real(struct json_object *line, const char *name, double value)
{
    if (line)
        json_object_object_add(line, name, json_object_new_double(isfinite(value) ? value : 0.0));
}

void host_line_add_flag(struct json_object *line, const char *name, bool value)
{
    if (line)
        json_object_object_add(line, name, json_object_new_boolean(value));
}

void host_line_add_list(struct json_object *line, const char *name, const char *const *list)
{
    struct json_object *array = line ? json_object_new_array() : NULL;
    for (size_t i = 0; array && list && list[i]; i++)
        json_object_array_add(array, json_object_new_string(list[i]));
    if (array)
        json_object_object_add(line, name, array);
}

void host_line_add_data(struct json_object *line, const void *bytes, size_t size)
{
    char *text = line ? malloc(host_base64_length(size) + 1) : NULL;
    if (!text)
        return;
    host_base64_encode(bytes, size, text);
    host_line_add_text(line, "data", text);
    free(text);
}

static struct json_object *member(struct json_object *line, const char *name)
{
    struct json_object *value = NULL;
    return json_object_object_get_ex(line, name, &value) ? value : NULL;
}

static const char *text_of(struct json_object *value)
{
    if (!json_object_is_type(value, json_type_string))
        return NULL;
    const char *text = json_object_get_string(value);
    return text && strlen(text) == (size_t)json_object_get_string_len(value) ? text : NULL;
}

const char *host_line_text(struct json_object *line, const char *name)
{
    return text_of(member(line, name));
}

int64_t host_line_number(struct json_object *line, const char *name, int64_t least, int64_t most)
{
    struct json_object *value = member(line, name);
    int64_t number = json_object_is_type(value, json_type_int) ? json_object_get_int64(value) : least;
    return number < least ? least : number > most ? most : number;
}

double host_line_real(struct json_object *line, const char *name, double least, double most)
{
    struct json_object *value = member(line, name);
    bool number = json_object_is_type(value, json_type_double) || json_object_is_type(value, json_type_int);
    double real = number ? json_object_get_double(value) : least;
    return !(real >= least) ? least : fmin(real, most);
}

bool host_line_flag(struct json_object *line, const char *name)
{
    struct json_object *value = member(line, name);
    return json_object_is_type(value, json_type_boolean) && json_object_get_boolean(value);
}

const char **host_line_list(struct json_object *line, const char *name)
{
    struct json_object *array = member(line, name);
    if (!json_object_is_type(array, json_type_array))
        return NULL;
    size_t n = json_object_array_length(array);
    const char **list = calloc(n + 1, sizeof *list);
    for (size_t i = 0; list && i < n; i++) {
        list[i] = text_of(json_object_array_get_idx(array, i));
        if (!list[i]) {
            free(list);
            return NULL;
        }
    }
    return list;
}

uint8_t *host_line_data(struct json_object *line, size_t *size)
{
    const char *text = host_line_text(line, "data");
    size_t length = text ? strlen(text) : 0;
    *size = 0;
    if (!text || length > host_base64_length(HOST_DATA_MOST))
        return NULL;
    uint8_t *bytes = malloc(length / 4 * 3 + 1);
    if (bytes && host_base64_decode(text, length, bytes, size))
        return bytes;
    free(bytes);
    return NULL;
}

bool host_line_dispatch(const struct host_line_handler *table, size_t n, void *self, struct json_object *line)
{
    const char *type = host_line_text(line, "type");
    for (size_t i = 0; type && i < n; i++) {
        if (strcmp(table[i].type, type) == 0) {
            table[i].handle(self, line);
            return true;
        }
    }
    return false;
}
