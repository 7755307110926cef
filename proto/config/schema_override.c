/* Overrides: "agent.hidden=[64, 64]" changes the document before it is read, so that values of a command line are checked like
 * those of the file. Nodes from an override carry its number in place of a line. */
#include <stdlib.h>
#include <string.h>

#include "proto/config/schema_yaml.h"

struct override {
    yaml_document_t *document;
    struct schema_report *report;
    struct schema_place place;
};

/* One part of a path: a key, or the number of an element. */
struct step {
    const char *name; /* NULL: an element */
    size_t length;
    size_t index;
};

static void problem(const struct override *self, const char *text)
{
    schema_report_at(self->report, self->place, "", "%s", text);
}

static int mark(const struct override *self, int index)
{
    if (index > 0) {
        yaml_node_t *node = yaml_document_get_node(self->document, index);
        node->start_mark = (yaml_mark_t){.line = self->place.line - 1};
    }
    return index;
}

static int add_scalar(const struct override *self, const char *text, size_t length, yaml_scalar_style_t style)
{
    return mark(self, yaml_document_add_scalar(self->document, NULL, (const yaml_char_t *)text, (int)length, style));
}

static int add_container(const struct override *self, bool list)
{
    return mark(self, list ? yaml_document_add_sequence(self->document, NULL, YAML_ANY_SEQUENCE_STYLE)
                           : yaml_document_add_mapping(self->document, NULL, YAML_ANY_MAPPING_STYLE));
}

/* ------------------------------------------------------------------------------------------------------------ value */

/* Copies a node of another document with everything below it; 0: no memory. schema_yaml_scan has bounded the depth. */
static int copy(const struct override *self, yaml_document_t *from, int index)
{
    const yaml_node_t *node = yaml_document_get_node(from, index);
    if (node->type == YAML_SCALAR_NODE)
        return add_scalar(self, (const char *)node->data.scalar.value, node->data.scalar.length,
                          node->data.scalar.style);
    int made = add_container(self, node->type == YAML_SEQUENCE_NODE);
    if (node->type == YAML_SEQUENCE_NODE) {
        for (int *item = node->data.sequence.items.start; made && item < node->data.sequence.items.top; item++) {
            int element = copy(self, from, *item);
            if (!element || !yaml_document_append_sequence_item(self->document, made, element))
                return 0;
        }
        return made;
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; made && pair < node->data.mapping.pairs.top; pair++) {
        int key = copy(self, from, pair->key);
        int value = key ? copy(self, from, pair->value) : 0;
        if (!value || !yaml_document_append_mapping_pair(self->document, made, key, value))
            return 0;
    }
    return made;
}

/* Reports a mistake in the value's YAML at the override. */
static bool scan(const struct override *self, const char *override, const char *text, size_t size)
{
    char name[256];
    snprintf(name, sizeof name, "override '%.200s'", override);
    schema_report_begin(self->report, name);
    return schema_yaml_scan(self->report, text, size);
}

/* Adds the value of an override as a node of the document; 0: reported. Nothing after "=" is an empty string. */
static int read_value(const struct override *self, const char *override, const char *text)
{
    yaml_document_t value;
    size_t size = strlen(text);
    int made = 0;
    if (size > 0 && !scan(self, override, text, size))
        return 0;
    if (size == 0) {
        made = add_scalar(self, "", 0, YAML_DOUBLE_QUOTED_SCALAR_STYLE);
    } else if (schema_yaml_load(text, size, &value)) {
        bool empty = !yaml_document_get_root_node(&value);
        made = empty ? add_scalar(self, "", 0, YAML_PLAIN_SCALAR_STYLE) : copy(self, &value, 1);
        yaml_document_delete(&value);
    }
    if (!made)
        problem(self, "out of memory");
    return made;
}

/* ------------------------------------------------------------------------------------------------------------- path */

/* Takes the next part of a path. False: the path is not valid. */
static bool next_step(const char **at, bool first, struct step *out)
{
    *out = (struct step){0};
    if (**at == '[' && !first) {
        char *end;
        if ((*at)[1] < '0' || (*at)[1] > '9')
            return false;
        out->index = strtoul(*at + 1, &end, 10);
        *at = end + 1;
        return *end == ']' && (**at == '\0' || **at == '.' || **at == '[');
    }
    if (!first && *(*at)++ != '.')
        return false;
    out->name = *at;
    out->length = strcspn(*at, ".[");
    *at += out->length;
    return out->length > 0;
}

/* Returns where a container keeps the child, or NULL. */
static int *find(const struct override *self, const yaml_node_t *node, const struct step *step)
{
    if (!step->name) {
        size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
        return step->index < count ? &node->data.sequence.items.start[step->index] : NULL;
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(self->document, pair->key);
        if (key->type == YAML_SCALAR_NODE && key->data.scalar.length == step->length &&
            memcmp(key->data.scalar.value, step->name, step->length) == 0)
            return &pair->value;
    }
    return NULL;
}

static bool append(const struct override *self, int parent, const struct step *step, int child)
{
    if (step->name) {
        int key = add_scalar(self, step->name, step->length, YAML_PLAIN_SCALAR_STYLE);
        return key && yaml_document_append_mapping_pair(self->document, parent, key, child);
    }
    return yaml_document_append_sequence_item(self->document, parent, child) != 0;
}

/* True if the element of a list is a map with this name. */
static bool is_named(const struct override *self, const yaml_node_t *element, const struct step *step)
{
    static const struct step name = {.name = "name", .length = 4};
    const int *slot = element->type == YAML_MAPPING_NODE ? find(self, element, &name) : NULL;
    const yaml_node_t *value = slot ? yaml_document_get_node(self->document, *slot) : NULL;
    return value && value->type == YAML_SCALAR_NODE && value->data.scalar.length == step->length &&
           memcmp(value->data.scalar.value, step->name, step->length) == 0;
}

/* Says how to write an element of a list: tables.0 and tables.replay stand for tables[0], and
 * tables.max_size for tables[0].max_size. */
static void suggest_index(const struct override *self, const yaml_node_t *list, const struct step *step,
                          const char *path, size_t length)
{
    size_t n = (size_t)(list->data.sequence.items.top - list->data.sequence.items.start), index = 0;
    bool number = step->length < 9 && strspn(step->name, "0123456789") >= step->length, element = number;
    if (number)
        index = strtoul(step->name, NULL, 10);
    for (size_t i = 0; i < n && !number; i++) {
        if (is_named(self, yaml_document_get_node(self->document, list->data.sequence.items.start[i]), step)) {
            index = i;
            element = true;
        }
    }
    schema_report_at(self->report, self->place, "",
                     "'%.*s' is a list, and its elements have numbers, here below %zu: write %.*s[%zu]%s%s",
                     (int)length, path, n, (int)length, path, index, element ? "" : ".",
                     element ? step->name + step->length : step->name);
}

/* Checks that the container can have such a child. False: reported. */
static bool may_have(const struct override *self, const yaml_node_t *node, const struct step *step, const char *path,
                     size_t length)
{
    if (step->name && node->type == YAML_SEQUENCE_NODE) {
        suggest_index(self, node, step, path, length);
        return false;
    }
    if (node->type != (step->name ? YAML_MAPPING_NODE : YAML_SEQUENCE_NODE)) {
        schema_report_at(self->report, self->place, "", "'%.*s' is %s, not %s", (int)length, path,
                         schema_yaml_kind(node), step->name ? "a map of keys" : "a list");
        return false;
    }
    size_t count = step->name ? 0 : (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    if (!step->name && step->index > count) {
        schema_report_at(self->report, self->place, "", "'%.*s' has no element %zu: the next one is %zu", (int)length,
                         path, step->index, count);
        return false;
    }
    return true;
}

/* Stores the value at the path, and makes containers that are missing on the way. */
static void put(const struct override *self, const char *path, int value)
{
    int parent = 1;
    for (const char *at = path;;) {
        struct step step;
        size_t done = (size_t)(at - path);
        if (!next_step(&at, at == path, &step)) {
            schema_report_at(self->report, self->place, "", "'%s' is not a path such as tables[0].max_size", path);
            return;
        }
        const yaml_node_t *node = yaml_document_get_node(self->document, parent);
        if (!may_have(self, node, &step, path, done))
            return;
        bool last = *at == '\0';
        int *slot = find(self, node, &step);
        if (slot && !last && !schema_yaml_is_null(yaml_document_get_node(self->document, *slot))) {
            parent = *slot;
            continue;
        }
        int child = last ? value : add_container(self, *at == '[');
        if (slot && child) {
            *slot = child;
        } else if (!child || !append(self, parent, &step, child)) {
            problem(self, "out of memory");
            return;
        }
        if (last)
            return;
        parent = child;
    }
}

bool schema_override(yaml_document_t *document, const char *const *overrides, struct schema_report *report)
{
    uint32_t before = schema_report_count(report);
    for (uint32_t i = 0; overrides[i]; i++) {
        struct override self = {document, report, {SCHEMA_OVERRIDE_LINE + i, 1}};
        const char *sign = strchr(overrides[i], '=');
        char *path = sign ? strndup(overrides[i], (size_t)(sign - overrides[i])) : NULL;
        if (!sign) {
            problem(&self, "has no '=': write KEY=VALUE, such as seed=7");
        } else if (!path) {
            problem(&self, "out of memory");
        } else {
            int value = read_value(&self, overrides[i], sign + 1);
            if (value)
                put(&self, path, value);
        }
        free(path);
    }
    return schema_report_count(report) == before;
}
