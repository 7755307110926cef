/* Reads a YAML document into the struct. A level is one struct: the root, or one element of a list; maps inside it only group
 * its keys. */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "proto/config/schema_impl.h"
#include "proto/config/schema_yaml.h"

#define WHY_BYTES 512

struct schema_reader {
    const struct schema *schema;
    struct schema_report *report;
    yaml_document_t *document;
    const char *file; /* the file being read; NULL: a text */
    bool no_memory;   /* a string is NULL */
};

struct schema_level {
    void *base;
    bool *seen; /* [row] the key was given, correct or not */
};

static void read_map(struct schema_reader *r, struct schema_level *level, yaml_node_t *map, const char *prefix,
                     const char *path);

/* Returns the text of a scalar; NULL: the node is not a scalar, which is reported. */
static const char *scalar_text(struct schema_reader *r, const yaml_node_t *node, const char *path)
{
    struct schema_place place = schema_yaml_place(node->start_mark);
    if (node->type != YAML_SCALAR_NODE) {
        schema_report_at(r->report, place, path, "must be a single value, not %s", schema_yaml_kind(node));
        return NULL;
    }
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length) {
        schema_report_at(r->report, place, path, "has a zero byte in it");
        return NULL;
    }
    if (schema_yaml_is_null(node)) {
        schema_report_at(r->report, place, path, "has no value");
        return NULL;
    }
    return text;
}

/* Resolves a path of the file (not of an override) relative to the file, if it exists there. */
static const char *beside_file(const struct schema_reader *r, const struct schema_row *row, const yaml_node_t *node,
                               const char *text, char out[PATH_MAX])
{
    if ((row->type != SCHEMA_PATH && row->type != SCHEMA_PATHS) || !r->file || !text[0] || text[0] == '/' ||
        schema_yaml_place(node->start_mark).line >= SCHEMA_OVERRIDE_LINE)
        return text;
    char folder[PATH_MAX], joined[2 * PATH_MAX];
    snprintf(folder, sizeof folder, "%s", r->file);
    snprintf(joined, sizeof joined, "%s/%s", dirname(folder), text);
    return realpath(joined, out) ? out : text;
}

/* ------------------------------------------------------------------------------------------------------------ lists */

static bool count_allowed(struct schema_reader *r, const struct schema_row *row, const yaml_node_t *node, size_t count,
                          const char *path)
{
    const char *things = row->type == SCHEMA_OPTIONS ? "keys" : "elements";
    if (schema_row_bounded(row) && ((double)count < row->min || (double)count > row->max)) {
        char bounds[128];
        struct schema_row counted = *row;
        counted.choices = NULL; /* words such as auto stand for the whole list */
        schema_format_bounds(&counted, bounds, sizeof bounds);
        schema_report_at(r->report, schema_yaml_place(node->start_mark), path, "must have %s %s, not %zu", bounds,
                         things, count);
        return false;
    }
    if (count > SCHEMA_MAX_LIST) {
        schema_report_at(r->report, schema_yaml_place(node->start_mark), path, "has more than %u %s", SCHEMA_MAX_LIST,
                         things);
        return false;
    }
    return true;
}

static void apply_defaults(struct schema_reader *r, struct schema_level *level, const char *prefix, const char *path,
                           struct schema_place place);

static void read_element(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, void *element,
                         const char *path)
{
    char prefix[SCHEMA_MAX_PATH], why[WHY_BYTES], whole[PATH_MAX];
    struct schema_place place = schema_yaml_place(node->start_mark);
    schema_report_place(r->report, path, place);
    if (row->type == SCHEMA_LIST) {
        struct schema_level level = {element, calloc(r->schema->n_rows, sizeof(bool))};
        if (!level.seen) {
            schema_report_at(r->report, place, path, "out of memory");
            return;
        }
        snprintf(prefix, sizeof prefix, "%s[]", row->path);
        if (!schema_yaml_is_null(node))
            read_map(r, &level, node, prefix, path);
        apply_defaults(r, &level, prefix, path, place);
        free(level.seen);
        return;
    }
    const char *text = scalar_text(r, node, path);
    if (!text)
        text = row->type == SCHEMA_INTS || row->type == SCHEMA_REALS ? "0" : "";
    const struct schema_row scalar = {.type = row->type == SCHEMA_INTS    ? SCHEMA_INT
                                              : row->type == SCHEMA_REALS ? SCHEMA_REAL
                                                                          : SCHEMA_STRING};
    if (!schema_set_scalar(&scalar, beside_file(r, row, node, text, whole), element, why, sizeof why))
        schema_report_at(r->report, place, path, "%s", why);
}

static void read_sequence(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, void *base,
                          const char *path)
{
    struct schema_list *list = (struct schema_list *)((char *)base + row->offset);
    if (node->type != YAML_SEQUENCE_NODE) {
        schema_report_at(r->report, schema_yaml_place(node->start_mark), path, "must be a list, not %s",
                         schema_yaml_kind(node));
        return;
    }
    size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    if (!count_allowed(r, row, node, count, path) || count == 0)
        return;
    size_t size = row->type == SCHEMA_LIST    ? row->elem_size
                  : row->type == SCHEMA_INTS  ? sizeof(int64_t)
                  : row->type == SCHEMA_REALS ? sizeof(double)
                                              : sizeof(char *);
    list->data = calloc(count, size);
    if (!list->data) {
        schema_report_at(r->report, schema_yaml_place(node->start_mark), path, "out of memory");
        return;
    }
    list->count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        char element_path[SCHEMA_MAX_PATH];
        snprintf(element_path, sizeof element_path, "%s[%zu]", path, i);
        yaml_node_t *element = yaml_document_get_node(r->document, node->data.sequence.items.start[i]);
        read_element(r, row, element, (char *)list->data + i * size, element_path);
    }
}

/* Reads a number in place of a list: as many empty strings. */
static void read_count(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, void *base,
                       const char *path)
{
    struct schema_list *list = (struct schema_list *)((char *)base + row->offset);
    struct schema_place place = schema_yaml_place(node->start_mark);
    const struct schema_row number = {.type = SCHEMA_INT,
                                      .min = row->min,
                                      .max = schema_row_bounded(row) ? row->max : SCHEMA_MAX_LIST,
                                      .choices = row->choices};
    char why[WHY_BYTES];
    int64_t count = 0;
    const char *text = scalar_text(r, node, path);
    if (!text)
        return;
    if (!schema_set_scalar(&number, text, &count, why, sizeof why)) {
        schema_report_at(r->report, place, path, "%s", why);
        return;
    }
    char **strings = count > 0 ? calloc((size_t)count, sizeof *strings) : NULL;
    for (int64_t i = 0; strings && i < count; i++, list->count++)
        if (!(strings[i] = strdup("")))
            break;
    list->data = strings;
    if (list->count < (uint64_t)count)
        schema_report_at(r->report, place, path, "out of memory");
}

/* Reads one "name: value" of a free map. */
static void read_option(struct schema_reader *r, struct schema_list *list, yaml_node_t *key, yaml_node_t *value,
                        const char *path)
{
    const char *name = scalar_text(r, key, path);
    if (!name)
        return;
    char option_path[SCHEMA_MAX_PATH];
    schema_join(option_path, sizeof option_path, path, name, strlen(name));
    if (strlen(name) > SCHEMA_MAX_NAME) {
        schema_report_at(r->report, schema_yaml_place(key->start_mark), path, "has a key of more than %u bytes",
                         SCHEMA_MAX_NAME);
        return;
    }
    rp_option *options = list->data;
    for (uint32_t i = 0; i < list->count; i++) {
        if (options[i].name && strcmp(options[i].name, name) == 0) {
            schema_report_at(r->report, schema_yaml_place(key->start_mark), option_path, "is given twice");
            return;
        }
    }
    schema_report_place(r->report, option_path, schema_yaml_place(value->start_mark));
    const char *text = scalar_text(r, value, option_path);
    if (!text)
        return;
    rp_option option = {strdup(name), strdup(text)};
    if (!option.name || !option.value) {
        free((char *)option.name);
        free((char *)option.value);
        schema_report_at(r->report, schema_yaml_place(key->start_mark), option_path, "out of memory");
        return;
    }
    options[list->count++] = option;
}

static void read_options(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, void *base,
                         const char *path)
{
    struct schema_list *list = (struct schema_list *)((char *)base + row->offset);
    if (node->type != YAML_MAPPING_NODE) {
        schema_report_at(r->report, schema_yaml_place(node->start_mark), path, "must be a map of options, not %s",
                         schema_yaml_kind(node));
        return;
    }
    size_t count = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    if (!count_allowed(r, row, node, count, path) || count == 0)
        return;
    list->data = calloc(count, sizeof(rp_option));
    if (!list->data) {
        schema_report_at(r->report, schema_yaml_place(node->start_mark), path, "out of memory");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        yaml_node_pair_t pair = node->data.mapping.pairs.start[i];
        read_option(r, list, yaml_document_get_node(r->document, pair.key),
                    yaml_document_get_node(r->document, pair.value), path);
    }
}

/* ------------------------------------------------------------------------------------------------------------- maps */

static void read_value(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, void *base,
                       const char *path)
{
    char why[WHY_BYTES], whole[PATH_MAX];
    switch (row->type) {
    case SCHEMA_LIST:
    case SCHEMA_STRINGS:
    case SCHEMA_PATHS:
    case SCHEMA_INTS:
    case SCHEMA_REALS:
        read_sequence(r, row, node, base, path);
        break;
    case SCHEMA_COUNT:
        if (node->type == YAML_SCALAR_NODE)
            read_count(r, row, node, base, path);
        else
            read_sequence(r, row, node, base, path);
        break;
    case SCHEMA_OPTIONS:
        read_options(r, row, node, base, path);
        break;
    default: {
        const char *text = scalar_text(r, node, path);
        if (text && !schema_set_scalar(row, beside_file(r, row, node, text, whole), base, why, sizeof why))
            schema_report_at(r->report, schema_yaml_place(node->start_mark), path, "%s", why);
        break;
    }
    }
}

/* Returns the first row below prefix that goes through `key`: a leaf, or a row of the group of that name (*group is set). */
static const struct schema_row *find_row(const struct schema *schema, const char *prefix, const char *key, bool *group)
{
    for (uint32_t i = 0; i < schema->n_rows; i++) {
        const char *name, *rest;
        size_t length;
        if (schema_row_below(&schema->rows[i], prefix, &name, &length, &rest) && strlen(key) == length &&
            memcmp(name, key, length) == 0 && *rest != '[') {
            *group = *rest == '.';
            return &schema->rows[i];
        }
    }
    return NULL;
}

/* True if path ends with `end` and `end` starts at a component. */
static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return m <= n && strcmp(path + n - m, end) == 0 && (m == n || path[n - m - 1] == '.');
}

/* Returns the key that an unknown word probably means, by an alias or by the same name in another map, relative to prefix; NULL:
 * none. */
static const char *find_elsewhere(const struct schema *schema, const char *prefix, const char *key)
{
    const char *end = key, *name, *rest, *found = NULL;
    size_t length;
    for (const struct schema_alias *alias = schema->aliases; alias && alias->word; alias++)
        if (strcmp(alias->word, key) == 0)
            end = alias->path;
    for (uint32_t i = 0; i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        if (!ends_with(row->path, end))
            continue;
        if (schema_row_below(row, prefix, &name, &length, &rest))
            return name;
        found = found ? found : row->path;
    }
    return found;
}

static void report_unknown(struct schema_reader *r, const char *prefix, const char *key, struct schema_place place,
                           const char *path)
{
    const char *names[128];
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->schema->n_rows && n < 128; i++) {
        const char *name, *rest;
        size_t length;
        if (!schema_row_below(&r->schema->rows[i], prefix, &name, &length, &rest) ||
            schema_row_repeats(r->schema, i, prefix))
            continue;
        char *copy = strndup(name, length);
        if (copy)
            names[n++] = copy;
    }
    const char *near = find_elsewhere(r->schema, prefix, key);
    if (!near)
        near = schema_nearest(key, names, n);
    if (near)
        schema_report_at(r->report, place, path, "unknown key (did you mean '%s'?)", near);
    else
        schema_report_at(r->report, place, path, "unknown key");
    for (uint32_t i = 0; i < n; i++)
        free((char *)names[i]);
}

/* A key that was read, and its line. */
struct key_line {
    const struct schema_row *row;
    uint32_t line;
};

/* A map being read. */
struct schema_map {
    const char *prefix; /* of its rows in the schema */
    const char *path;   /* in the file, for messages */
    struct key_line *keys;
    uint32_t n_keys;
};

/* Returns the line of the key if the map has had it before, else 0. */
static uint32_t map_add(struct schema_map *self, const struct schema_row *row, struct schema_place place)
{
    for (uint32_t i = 0; i < self->n_keys; i++)
        if (self->keys[i].row == row)
            return self->keys[i].line;
    self->keys[self->n_keys++] = (struct key_line){row, place.line};
    return 0;
}

static void read_pair(struct schema_reader *r, struct schema_level *level, yaml_node_pair_t pair,
                      struct schema_map *map)
{
    const char *prefix = map->prefix, *path = map->path;
    yaml_node_t *key = yaml_document_get_node(r->document, pair.key);
    yaml_node_t *value = yaml_document_get_node(r->document, pair.value);
    struct schema_place place = schema_yaml_place(key->start_mark);
    if (key->type != YAML_SCALAR_NODE) {
        schema_report_at(r->report, place, path, "a key must be a word, not %s", schema_yaml_kind(key));
        return;
    }
    const char *name = (const char *)key->data.scalar.value;
    char below[SCHEMA_MAX_PATH], key_path[SCHEMA_MAX_PATH];
    schema_join(key_path, sizeof key_path, path, name, strnlen(name, SCHEMA_MAX_NAME));
    bool group = false;
    const struct schema_row *row = find_row(r->schema, prefix, name, &group);
    if (!row) {
        report_unknown(r, prefix, name, place, key_path);
        return;
    }
    uint32_t line = map_add(map, row, place);
    if (line) {
        schema_report_at(r->report, place, key_path, "is given twice (first on line %u)", line);
        return;
    }
    struct schema_place value_place = schema_yaml_place(value->start_mark);
    if ((!group && value->type == YAML_SCALAR_NODE) || value_place.line >= SCHEMA_OVERRIDE_LINE)
        place = value_place;
    schema_report_place(r->report, key_path, place);
    /* An empty group or list, such as one whose lines are all commented out, counts as absent. */
    bool scalar = !group && row->type <= SCHEMA_ENUM;
    if (schema_yaml_is_null(value) && !scalar)
        return;
    if (group) {
        schema_join(below, sizeof below, prefix, name, strlen(name));
        row = value->type == YAML_SCALAR_NODE ? find_row(r->schema, below, "kind", &group) : NULL;
        if (!row) {
            read_map(r, level, value, below, key_path);
            return;
        }
    }
    level->seen[row - r->schema->rows] = true;
    read_value(r, row, value, level->base, key_path);
}

static void read_map(struct schema_reader *r, struct schema_level *level, yaml_node_t *map, const char *prefix,
                     const char *path)
{
    if (map->type != YAML_MAPPING_NODE) {
        schema_report_at(r->report, schema_yaml_place(map->start_mark), path, "must be a map of keys, not %s",
                         schema_yaml_kind(map));
        return;
    }
    struct schema_map self = {prefix, path, calloc(r->schema->n_rows, sizeof(struct key_line)), 0};
    if (!self.keys) {
        schema_report_at(r->report, schema_yaml_place(map->start_mark), path, "out of memory");
        return;
    }
    for (yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top; pair++)
        read_pair(r, level, *pair, &self);
    free(self.keys);
}

/* --------------------------------------------------------------------------------------------------------- defaults */

/* Applies a default. A default that cannot be read is a defect of the program; it is reported like any other mistake. */
static void apply_default(struct schema_reader *r, const struct schema_row *row, void *base, const char *path,
                          struct schema_place place)
{
    char why[WHY_BYTES];
    const char *text = row->default_text ? row->default_text : "";
    if (row->type <= SCHEMA_ENUM) {
        size_t n = strlen(text);
        bool quoted = n >= 2 && text[0] == '"' && text[n - 1] == '"';
        char *plain = quoted ? strndup(text + 1, n - 2) : strdup(text);
        if (!plain)
            schema_report_at(r->report, place, path, "out of memory");
        else if (!schema_set_scalar(row, plain, base, why, sizeof why))
            schema_report_at(r->report, place, path, "(default) %s", why);
        free(plain);
        return;
    }
    yaml_document_t document;
    if (text[0] == '\0')
        return;
    if (!schema_yaml_load(text, strlen(text), &document)) {
        schema_report_at(r->report, place, path, "(default) '%s' is not valid YAML", text);
        return;
    }
    struct schema_reader inner = {r->schema, r->report, &document, NULL, false};
    yaml_node_t *node = yaml_document_get_root_node(&document);
    if (node)
        read_value(&inner, row, node, base, path);
    r->no_memory |= inner.no_memory;
    yaml_document_delete(&document);
}

static void apply_defaults(struct schema_reader *r, struct schema_level *level, const char *prefix, const char *path,
                           struct schema_place place)
{
    for (uint32_t i = 0; i < r->schema->n_rows; i++) {
        const struct schema_row *row = &r->schema->rows[i];
        const char *name, *rest;
        size_t length;
        if (!schema_row_below(row, prefix, &name, &length, &rest) || strchr(name, '['))
            continue;
        char row_path[SCHEMA_MAX_PATH];
        schema_join(row_path, sizeof row_path, path, name, strlen(name));
        bool required = schema_row_required(row);
        if (!level->seen[i] && required)
            schema_problem(r->report, row_path, "is required");
        else if (!level->seen[i])
            apply_default(r, row, level->base, row_path, place);
        /* Strings are never NULL, even after a mistake. */
        char **string = (char **)((char *)level->base + row->offset);
        if ((row->type == SCHEMA_STRING || row->type == SCHEMA_PATH) && !*string && (*string = strdup("")) == NULL) {
            schema_report_at(r->report, place, row_path, "out of memory");
            r->no_memory = true;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ whole texts */

/* Loads the document of a text that schema_yaml_scan has accepted. False: reported. */
static bool open_document(struct schema_report *report, const char *text, size_t size, yaml_document_t *document)
{
    const struct schema_place nowhere = {0, 0};
    if (size > SCHEMA_MAX_FILE) {
        schema_report_at(report, nowhere, "", "is larger than %u KiB", SCHEMA_MAX_FILE / 1024);
        return false;
    }
    if (!schema_yaml_scan(report, text, size))
        return false;
    if (!schema_yaml_load(text, size, document)) {
        schema_report_at(report, nowhere, "", "out of memory");
        return false;
    }
    return true;
}

/* Applies the overrides. An empty document becomes an empty map first. */
static bool override(yaml_document_t *document, const char *const *overrides, struct schema_report *report)
{
    const yaml_node_t *node = yaml_document_get_root_node(document);
    if (!overrides || !overrides[0])
        return true;
    if (!node || schema_yaml_is_null(node)) {
        yaml_document_t empty;
        if (!schema_yaml_load("{}", 2, &empty)) {
            schema_report_at(report, (struct schema_place){0, 0}, "", "out of memory");
            return false;
        }
        yaml_document_delete(document);
        *document = empty;
        node = yaml_document_get_root_node(document);
    }
    /* The reader reports a root that is not a map. */
    return node->type != YAML_MAPPING_NODE || schema_override(document, overrides, report);
}

/* Gives the root, or the value of the section's key; NULL counts as an empty map. False: reported. */
static bool find_section(const struct schema_reader *r, const char *section, yaml_node_t **out)
{
    yaml_node_t *node = yaml_document_get_root_node(r->document);
    *out = node;
    if (!section)
        return true;
    *out = node && node->type == YAML_MAPPING_NODE ? schema_yaml_find(r->document, node, section) : NULL;
    if (*out)
        return true;
    schema_report_at(r->report, (struct schema_place){0, 0}, "", "has no section '%s'", section);
    return false;
}

static bool fill(struct schema_reader *r, const char *section, void *root)
{
    yaml_node_t *node;
    if (!find_section(r, section, &node))
        return false;
    const struct schema_place top = section && node ? schema_yaml_place(node->start_mark) : (struct schema_place){1, 1};
    struct schema_level level = {root, calloc(r->schema->n_rows + 1, sizeof(bool))};
    if (!level.seen) {
        schema_report_at(r->report, top, "", "out of memory");
        return false;
    }
    schema_report_within(r->report, section);
    schema_report_place(r->report, "", top);
    if (node && !schema_yaml_is_null(node))
        read_map(r, &level, node, "", "");
    apply_defaults(r, &level, "", "", top);
    free(level.seen);
    if (r->schema->check && !r->no_memory) { /* checks rely on the strings */
        schema_report_quiet(r->report, true);
        r->schema->check(root, r->report);
        schema_report_quiet(r->report, false);
    }
    schema_report_within(r->report, NULL);
    return true;
}

static bool read_bytes(const struct schema *schema, const struct schema_source *source, const char *text, size_t size,
                       void *root, struct schema_report *report)
{
    const char *name = source->file ? source->file : source->name;
    schema_report_begin(report, name);
    uint32_t before = schema_report_count(report);
    yaml_document_t document;
    if (!open_document(report, text, size, &document))
        return false;
    struct schema_reader r = {schema, report, &document, source->file, false};
    schema_report_overrides(report, source->overrides);
    if (override(&document, source->overrides, report)) {
        schema_report_begin(report, name);
        fill(&r, source->section, root);
    }
    schema_report_overrides(report, NULL);
    yaml_document_delete(&document);
    if (schema_report_count(report) == before)
        return true;
    schema_free(schema, root);
    memset(root, 0, schema->root_size);
    return false;
}

bool schema_read(const struct schema *schema, const struct schema_source *source, void *root,
                 struct schema_report *report)
{
    const char *text = source->text ? source->text : "";
    if (!source->file)
        return read_bytes(schema, source, text, strlen(text), root, report);
    char *data = malloc(SCHEMA_MAX_FILE + 1);
    ssize_t size = data ? schema_yaml_slurp(source->file, data, SCHEMA_MAX_FILE) : -1;
    bool ok = false;
    if (size >= 0) {
        ok = read_bytes(schema, source, data, (size_t)size, root, report);
    } else {
        int error = data ? errno : ENOMEM;
        schema_report_begin(report, source->file);
        schema_report_at(report, (struct schema_place){0, 0}, "", "cannot be read: %s", strerror(error));
    }
    free(data);
    return ok;
}

bool schema_read_text(const struct schema *schema, const char *name, const char *text, void *root,
                      struct schema_report *report)
{
    const struct schema_source source = {.name = name, .text = text};
    return schema_read(schema, &source, root, report);
}

bool schema_read_file(const struct schema *schema, const char *path, void *root, struct schema_report *report)
{
    const struct schema_source source = {.file = path};
    return schema_read(schema, &source, root, report);
}
