/* Rows as a tree: how the dotted paths nest, and how a filled struct is freed. */
#include "proto/config/schema.h"

#include <stdlib.h>
#include <string.h>

#include "proto/config/schema_impl.h"

bool schema_row_below(const struct schema_row *row, const char *prefix, const char **name, size_t *length,
                      const char **rest)
{
    size_t n = strlen(prefix);
    if (strncmp(row->path, prefix, n) != 0)
        return false;
    const char *at = row->path + n;
    if (n > 0) {
        if (*at != '.')
            return false;
        at++;
    }
    *name = at;
    *length = strcspn(at, ".[");
    *rest = at + *length;
    return true;
}

bool schema_row_repeats(const struct schema *schema, uint32_t index, const char *prefix)
{
    const char *name, *other, *rest;
    size_t length, other_length;
    if (!schema_row_below(&schema->rows[index], prefix, &name, &length, &rest))
        return false;
    for (uint32_t i = 0; i < index; i++) {
        if (schema_row_below(&schema->rows[i], prefix, &other, &other_length, &rest) && other_length == length &&
            memcmp(name, other, length) == 0)
            return true;
    }
    return false;
}

void schema_join(char *out, size_t size, const char *parent, const char *name, size_t length)
{
    snprintf(out, size, "%s%s%.*s", parent, parent[0] ? "." : "", (int)(length < size ? length : size), name);
}

bool schema_row_required(const struct schema_row *row)
{
    if (row->default_text)
        return false;
    switch (row->type) {
    case SCHEMA_STRING:
    case SCHEMA_PATH:
    case SCHEMA_LIST:
    case SCHEMA_STRINGS:
    case SCHEMA_PATHS:
    case SCHEMA_COUNT:
    case SCHEMA_INTS:
    case SCHEMA_REALS:
    case SCHEMA_OPTIONS:
        return row->min >= 1;
    default:
        return true;
    }
}

static void free_level(const struct schema *schema, const char *prefix, void *base);

static void free_list(const struct schema *schema, const struct schema_row *row, struct schema_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (row->type == SCHEMA_STRINGS || row->type == SCHEMA_PATHS || row->type == SCHEMA_COUNT) {
            free(((char **)list->data)[i]);
        } else if (row->type == SCHEMA_OPTIONS) {
            rp_option *option = (rp_option *)list->data + i;
            free((char *)option->name);
            free((char *)option->value);
        } else if (row->type == SCHEMA_LIST) {
            char prefix[SCHEMA_MAX_PATH];
            snprintf(prefix, sizeof prefix, "%s[]", row->path);
            free_level(schema, prefix, (char *)list->data + i * row->elem_size);
        }
    }
    free(list->data);
    *list = (struct schema_list){0};
}

void schema_free_value(const struct schema *schema, const struct schema_row *row, void *base)
{
    void *at = (char *)base + row->offset;
    switch (row->type) {
    case SCHEMA_STRING:
    case SCHEMA_PATH:
        free(*(char **)at);
        *(char **)at = NULL;
        break;
    case SCHEMA_LIST:
    case SCHEMA_STRINGS:
    case SCHEMA_PATHS:
    case SCHEMA_COUNT:
    case SCHEMA_INTS:
    case SCHEMA_REALS:
    case SCHEMA_OPTIONS:
        free_list(schema, row, at);
        break;
    default:
        break;
    }
}

/* Frees the values of all rows in the same struct: below prefix, and not inside a list below it. */
static void free_level(const struct schema *schema, const char *prefix, void *base)
{
    for (uint32_t i = 0; i < schema->n_rows; i++) {
        const char *name, *rest;
        size_t length;
        if (schema_row_below(&schema->rows[i], prefix, &name, &length, &rest) && !strchr(name, '['))
            schema_free_value(schema, &schema->rows[i], base);
    }
}

void schema_free(const struct schema *schema, void *root)
{
    free_level(schema, "", root);
}
