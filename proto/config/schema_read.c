/* Reads a configuration: the list of its problems and where its keys were written, a first pass over the YAML that refuses what
 * the reader does not handle, overrides, and the document itself into a struct. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <yaml.h>

#include "proto/base/io.h"
#include "proto/base/need.h"
#include "proto/config/schema.h"
#include "proto/config/schema_row.h"

#define MAX_FILE (1u << 20)
#define MAX_DEPTH 32u
#define MAX_LIST 4096u  /* elements, if the row has no bound */
#define MAX_NAME 128u   /* bytes of a free option's name */
#define MAX_OPTIONS 32u /* of a kind */

#define MAX_PROBLEMS 200u
#define MAX_PLACES (1u << 20)
#define WHY_BYTES 512

/* A place in the file, counted from 1; line 0: not in a file. Lines from OVERRIDE_LINE on stand for the overrides, in their
 * order. */
#define OVERRIDE_LINE (1u << 30)
struct schema_place {
    uint32_t line, column;
};
static const struct schema_place nowhere = {0, 0};

/* ---- the report: problems, and where keys were written ---- */

struct problem {
    struct schema_place place;
    uint32_t order;
    char *file, *path, *text;
};

struct written {
    char *path;
    struct schema_place place;
};

struct schema_report {
    char *file;
    const char *section;          /* borrowed; prefix of every path, or NULL */
    const char *const *overrides; /* borrowed while they are applied */
    struct problem *problems;
    uint32_t n_problems;
    uint32_t total; /* including those past MAX_PROBLEMS */
    struct written *places;
    uint32_t n_places, room_places;
    bool quiet; /* drops problems of a path that has one itself, or above or below it: they are consequences */
    char *text; /* of all problems, made on demand */
};

struct schema_report *schema_report_new(void)
{
    return need_alloc(sizeof(struct schema_report));
}

static void forget_places(struct schema_report *self)
{
    for (uint32_t i = 0; i < self->n_places; i++)
        free(self->places[i].path);
    self->n_places = 0;
}

void schema_report_destroy(struct schema_report **self)
{
    struct schema_report *r = *self;
    if (!r)
        return;
    forget_places(r);
    for (uint32_t i = 0; i < r->n_problems; i++) {
        free(r->problems[i].file);
        free(r->problems[i].path);
        free(r->problems[i].text);
    }
    free(r->problems);
    free(r->places);
    free(r->file);
    free(r->text);
    free(r);
    *self = NULL;
}

/* Starts a new file: drops the places of the last one. Each problem begins with `file`. */
static void report_begin(struct schema_report *self, const char *file)
{
    forget_places(self);
    free(self->file);
    self->file = need_text(file);
    self->quiet = false;
    self->section = NULL;
}

void schema_report_within(struct schema_report *self, const char *section)
{
    self->section = section;
}

/* Writes the path from the root of the document. */
static const char *whole_path(const struct schema_report *self, const char *path, char *out, size_t size)
{
    if (!self->section)
        return path;
    snprintf(out, size, "%s%s%s", self->section, path[0] ? "." : "", path);
    return out;
}

/* Records where a path was written. */
static void report_place(struct schema_report *self, const char *path, struct schema_place place)
{
    char whole[SCHEMA_MAX_PATH];
    if (self->n_places >= MAX_PLACES)
        return;
    self->places = need_room(self->places, self->n_places, &self->room_places, sizeof *self->places);
    self->places[self->n_places++] = (struct written){need_text(whole_path(self, path, whole, sizeof whole)), place};
}

static const struct written *find_written(const struct schema_report *self, const char *path, size_t length)
{
    for (uint32_t i = 0; i < self->n_places; i++)
        if (strlen(self->places[i].path) == length && memcmp(self->places[i].path, path, length) == 0)
            return &self->places[i];
    return NULL;
}

bool schema_is_written(const struct schema_report *self, const char *path)
{
    return find_written(self, path, strlen(path)) != NULL;
}

/* Returns the place of path, or of its nearest parent that was written. */
static struct schema_place find_place(const struct schema_report *self, const char *path)
{
    size_t length = strlen(path);
    for (;;) {
        const struct written *written = find_written(self, path, length);
        if (written)
            return written->place;
        if (length == 0)
            return nowhere;
        while (length > 0 && path[length - 1] != '.' && path[length - 1] != '[')
            length--;
        if (length > 0)
            length--;
    }
}

/* True if the paths are equal, or one is above the other. */
static bool related(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b), n = n_a < n_b ? n_a : n_b;
    const char *longer = n_a < n_b ? b : a;
    return n > 0 && memcmp(a, b, n) == 0 && (longer[n] == '\0' || longer[n] == '.' || longer[n] == '[');
}

/* Writes the start of a problem: the file, or the override. */
static char *name_source(const struct schema_report *self, struct schema_place place)
{
    if (place.line < OVERRIDE_LINE || !self->overrides)
        return need_text(self->file ? self->file : "-");
    return need_print("override '%.200s'", self->overrides[place.line - OVERRIDE_LINE]);
}

/* Adds a problem; `path` starts at the root. */
static void report_add(struct schema_report *self, struct schema_place place, const char *path, const char *format,
                       va_list args)
{
    for (uint32_t i = 0; self->quiet && i < self->n_problems; i++) {
        if (related(self->problems[i].path, path))
            return;
    }
    free(self->text);
    self->text = NULL;
    self->total++;
    if (self->n_problems >= MAX_PROBLEMS)
        return;
    char text[4096];
    vsnprintf(text, sizeof text, format, args);
    self->problems = need_resize(self->problems, self->n_problems + 1, sizeof *self->problems);
    self->problems[self->n_problems] =
        (struct problem){place, self->n_problems, name_source(self, place), need_text(path), need_text(text)};
    self->n_problems++;
}

static RP_PRINTF(4, 5) void report_at(struct schema_report *self, struct schema_place place, const char *path,
                                      const char *format, ...)
{
    char whole[SCHEMA_MAX_PATH];
    va_list args;
    va_start(args, format);
    report_add(self, place, whole_path(self, path, whole, sizeof whole), format, args);
    va_end(args);
}

void schema_problem(struct schema_report *self, const char *path, const char *format, ...)
{
    char whole[SCHEMA_MAX_PATH];
    path = whole_path(self, path, whole, sizeof whole);
    va_list args;
    va_start(args, format);
    report_add(self, find_place(self, path), path, format, args);
    va_end(args);
}

uint32_t schema_report_count(const struct schema_report *self)
{
    return self->total;
}

static int by_place(const void *a, const void *b)
{
    const struct problem *x = a, *y = b;
    if (x->place.line != y->place.line)
        return x->place.line < y->place.line ? -1 : 1;
    if (x->place.column != y->place.column)
        return x->place.column < y->place.column ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static void print_problem(FILE *out, const struct problem *problem)
{
    fputs(problem->file, out);
    if (problem->place.line > 0 && problem->place.line < OVERRIDE_LINE)
        fprintf(out, ":%u:%u", problem->place.line, problem->place.column);
    if (problem->path[0])
        fprintf(out, ": %s", problem->path);
    fprintf(out, ": %s\n", problem->text);
}

const char *schema_report_text(const struct schema_report *self)
{
    if (self->text)
        return self->text;
    /* The text is a cache, so the report is logically const. */
    struct schema_report *cache = (struct schema_report *)self;
    size_t size = 0;
    FILE *out = open_memstream(&cache->text, &size);
    if (self->n_problems > 0)
        qsort(cache->problems, self->n_problems, sizeof *self->problems, by_place);
    for (uint32_t i = 0; i < self->n_problems; i++)
        print_problem(out, &self->problems[i]);
    if (self->total > self->n_problems)
        fprintf(out, "and %u more\n", self->total - self->n_problems);
    fclose(out);
    return cache->text;
}

/* ---- libyaml ---- */

static struct schema_place yaml_place(yaml_mark_t mark)
{
    return (struct schema_place){(uint32_t)mark.line + 1, (uint32_t)mark.column + 1};
}

/* Returns "a map", "a list" or "a single value". */
static const char *yaml_kind(const yaml_node_t *node)
{
    return node->type == YAML_MAPPING_NODE ? "a map" : node->type == YAML_SEQUENCE_NODE ? "a list" : "a single value";
}

/* True for "key:", "key: ~" and "key: null". */
static bool yaml_is_null(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE || node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    const char *text = (const char *)node->data.scalar.value;
    return text[0] == '\0' || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0;
}

/* Returns where a map keeps the value of a key, or NULL. */
static int *yaml_find(yaml_document_t *document, const yaml_node_t *map, const char *key, size_t length)
{
    for (yaml_node_pair_t *pair = map->data.mapping.pairs.start; pair < map->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name = yaml_document_get_node(document, pair->key);
        if (name->type == YAML_SCALAR_NODE && name->data.scalar.length == length &&
            memcmp(name->data.scalar.value, key, length) == 0)
            return &pair->value;
    }
    return NULL;
}

/* What libyaml gives is 0 if there is no memory. */
static int yaml_need(int given)
{
    if (!given)
        need_fail(sizeof(yaml_node_t));
    return given;
}

static void yaml_open(yaml_parser_t *parser, const char *text, size_t size)
{
    yaml_need(yaml_parser_initialize(parser));
    yaml_parser_set_input_string(parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING);
}

/* Loads a text that yaml_scan has accepted, or a constant. */
static void yaml_load(const char *text, size_t size, yaml_document_t *document)
{
    yaml_parser_t parser;
    yaml_open(&parser, text, size);
    yaml_need(yaml_parser_load(&parser, document));
    yaml_parser_delete(&parser);
}

/* Walks the events before the document is built: bounds the depth, and refuses constructs by which one place of the file stands
 * for several values. */
static bool scan_event(struct schema_report *report, const yaml_event_t *event, uint32_t *depth, uint32_t *documents)
{
    struct schema_place place = yaml_place(event->start_mark);
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        report_at(report, place, "", "aliases (*%.64s) are not supported: write the value again",
                  (const char *)event->data.alias.anchor);
        return true;
    case YAML_SCALAR_EVENT:
        if (event->data.scalar.tag)
            report_at(report, place, "", "tags (%.64s) are not supported", (const char *)event->data.scalar.tag);
        return true;
    case YAML_DOCUMENT_START_EVENT:
        if (++*documents == 2) {
            report_at(report, place, "", "only one YAML document is allowed in a file");
            return false;
        }
        return true;
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        if (++*depth > MAX_DEPTH) {
            report_at(report, place, "", "is nested more than %u levels deep", MAX_DEPTH);
            return false;
        }
        return true;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        --*depth;
        return true;
    default:
        return true;
    }
}

static void report_syntax(struct schema_report *report, const yaml_parser_t *parser)
{
    const char *what = parser->problem ? parser->problem : "it cannot be read";
    if (parser->error == YAML_READER_ERROR) {
        report_at(report, yaml_place(parser->mark), "", "not valid YAML: %s (byte %zu)", what, parser->problem_offset);
    } else if (parser->context) {
        report_at(report, yaml_place(parser->problem_mark), "", "not valid YAML: %s %s", parser->context, what);
    } else {
        report_at(report, yaml_place(parser->problem_mark), "", "not valid YAML: %s", what);
    }
}

/* Checks syntax and depth, that there is one document, and no aliases and tags. False: reported. */
static bool yaml_scan(struct schema_report *report, const char *text, size_t size)
{
    yaml_parser_t parser;
    yaml_open(&parser, text, size);
    uint32_t before = schema_report_count(report), depth = 0, documents = 0;
    for (bool more = true; more;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            report_syntax(report, &parser);
            break;
        }
        more = event.type != YAML_STREAM_END_EVENT && scan_event(report, &event, &depth, &documents);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return schema_report_count(report) == before;
}

/* Reads at most limit + 1 bytes of a file; -1: errno is set. */
static ssize_t slurp(const char *path, char *data, size_t limit)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? io_read(fd, data, limit + 1, IO_HERE) : -1;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return size;
}

/* ---- overrides: "agent.hidden=[64, 64]" changes the document before it is read, so that values of a command line are checked like
 * those of the file. Nodes from an override carry its number in place of a line. */

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

static int override_mark(const struct override *self, int index)
{
    yaml_document_get_node(self->document, yaml_need(index))->start_mark = (yaml_mark_t){.line = self->place.line - 1};
    return index;
}

static int add_scalar(const struct override *self, const char *text, size_t length, yaml_scalar_style_t style)
{
    return override_mark(self,
                         yaml_document_add_scalar(self->document, NULL, (const yaml_char_t *)text, (int)length, style));
}

static int add_container(const struct override *self, bool list)
{
    return override_mark(self, list ? yaml_document_add_sequence(self->document, NULL, YAML_ANY_SEQUENCE_STYLE)
                                    : yaml_document_add_mapping(self->document, NULL, YAML_ANY_MAPPING_STYLE));
}

/* ------------------------------------------------------------------------------------------------------------ value */

/* Copies a node of another document with everything below it. yaml_scan has bounded the depth. */
static int override_copy(const struct override *self, yaml_document_t *from, int index)
{
    const yaml_node_t *node = yaml_document_get_node(from, index);
    if (node->type == YAML_SCALAR_NODE)
        return add_scalar(self, (const char *)node->data.scalar.value, node->data.scalar.length,
                          node->data.scalar.style);
    int made = add_container(self, node->type == YAML_SEQUENCE_NODE);
    if (node->type == YAML_SEQUENCE_NODE) {
        for (int *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++)
            yaml_need(yaml_document_append_sequence_item(self->document, made, override_copy(self, from, *item)));
        return made;
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++) {
        int key = override_copy(self, from, pair->key), value = override_copy(self, from, pair->value);
        yaml_need(yaml_document_append_mapping_pair(self->document, made, key, value));
    }
    return made;
}

/* Reports a mistake in the value's YAML at the override. */
static bool override_scan(const struct override *self, const char *override, const char *text, size_t size)
{
    char name[256];
    snprintf(name, sizeof name, "override '%.200s'", override);
    report_begin(self->report, name);
    return yaml_scan(self->report, text, size);
}

/* Adds the value of an override as a node of the document; 0: reported. Nothing after "=" is an empty string. */
static int override_value(const struct override *self, const char *override, const char *text)
{
    yaml_document_t value;
    size_t size = strlen(text);
    if (size == 0)
        return add_scalar(self, "", 0, YAML_DOUBLE_QUOTED_SCALAR_STYLE);
    if (!override_scan(self, override, text, size))
        return 0;
    yaml_load(text, size, &value);
    bool empty = !yaml_document_get_root_node(&value);
    int made = empty ? add_scalar(self, "", 0, YAML_PLAIN_SCALAR_STYLE) : override_copy(self, &value, 1);
    yaml_document_delete(&value);
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
static int *override_find(const struct override *self, const yaml_node_t *node, const struct step *step)
{
    if (!step->name) {
        size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
        return step->index < count ? &node->data.sequence.items.start[step->index] : NULL;
    }
    return yaml_find(self->document, node, step->name, step->length);
}

static void override_append(const struct override *self, int parent, const struct step *step, int child)
{
    int key = step->name ? add_scalar(self, step->name, step->length, YAML_PLAIN_SCALAR_STYLE) : 0;
    yaml_need(key ? yaml_document_append_mapping_pair(self->document, parent, key, child)
                  : yaml_document_append_sequence_item(self->document, parent, child));
}

/* Checks that the container can have such a child. False: reported. */
static bool may_have(const struct override *self, const yaml_node_t *node, const struct step *step, const char *path,
                     size_t length)
{
    if (node->type != (step->name ? YAML_MAPPING_NODE : YAML_SEQUENCE_NODE)) {
        report_at(self->report, self->place, "", "'%.*s' is %s, not %s%s", (int)length, path, yaml_kind(node),
                  step->name ? "a map of keys" : "a list",
                  step->name && node->type == YAML_SEQUENCE_NODE
                      ? ": write the number of an element behind it, from [0] on"
                      : "");
        return false;
    }
    size_t count = step->name ? 0 : (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    if (!step->name && step->index > count) {
        report_at(self->report, self->place, "", "'%.*s' has no element %zu: the next one is %zu", (int)length, path,
                  step->index, count);
        return false;
    }
    return true;
}

/* Stores the value at the path, and makes containers that are missing on the way. */
static void override_put(const struct override *self, const char *path, int value)
{
    int parent = 1;
    for (const char *at = path;;) {
        struct step step;
        size_t done = (size_t)(at - path);
        if (!next_step(&at, at == path, &step)) {
            report_at(self->report, self->place, "", "'%s' is not a path such as tables[0].max_size", path);
            return;
        }
        const yaml_node_t *node = yaml_document_get_node(self->document, parent);
        if (!may_have(self, node, &step, path, done))
            return;
        bool last = *at == '\0';
        int *slot = override_find(self, node, &step);
        if (slot && !last && !yaml_is_null(yaml_document_get_node(self->document, *slot))) {
            parent = *slot;
            continue;
        }
        int child = last ? value : add_container(self, *at == '[');
        if (slot)
            *slot = child;
        else
            override_append(self, parent, &step, child);
        if (last)
            return;
        parent = child;
    }
}

/* Applies overrides to a document whose root is a map. False: reported. Changes the file's name in the report. */
static bool override_all(yaml_document_t *document, const char *const *overrides, struct schema_report *report)
{
    uint32_t before = schema_report_count(report);
    for (uint32_t i = 0; overrides[i]; i++) {
        struct override self = {document, report, {OVERRIDE_LINE + i, 1}};
        const char *sign = strchr(overrides[i], '=');
        if (!sign) {
            report_at(report, self.place, "", "has no '=': write KEY=VALUE, such as seed=7");
            continue;
        }
        char *path = need_print("%.*s", (int)(sign - overrides[i]), overrides[i]);
        int value = override_value(&self, overrides[i], sign + 1);
        if (value)
            override_put(&self, path, value);
        free(path);
    }
    return schema_report_count(report) == before;
}

/* ---- reading: a level is one struct, the root or one element of a list; maps inside it only group its keys ---- */

struct schema_reader {
    const struct schema *schema;
    struct schema_report *report;
    yaml_document_t *document;
    const char *file; /* the file being read; NULL: a text */
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
    struct schema_place place = yaml_place(node->start_mark);
    if (node->type != YAML_SCALAR_NODE) {
        report_at(r->report, place, path, "must be a single value, not %s", yaml_kind(node));
        return NULL;
    }
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length) {
        report_at(r->report, place, path, "has a zero byte in it");
        return NULL;
    }
    if (yaml_is_null(node)) {
        report_at(r->report, place, path, "has no value");
        return NULL;
    }
    return text;
}

/* Resolves a path of the file (not of an override) relative to the file, if it exists there. */
static const char *beside_file(const struct schema_reader *r, const struct schema_row *row, const yaml_node_t *node,
                               const char *text, char out[PATH_MAX])
{
    if ((row->type != SCHEMA_PATH && row->type != SCHEMA_PATHS) || !r->file || !text[0] || text[0] == '/' ||
        yaml_place(node->start_mark).line >= OVERRIDE_LINE)
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
    const char *things = row->type == SCHEMA_OPTIONS || row->type == SCHEMA_TUPLES ? "keys" : "elements";
    if (schema_row_bounded(row) && ((double)count < row->min || (double)count > row->max)) {
        char bounds[128];
        struct schema_row counted = *row;
        counted.choices = NULL; /* words such as auto stand for the whole list */
        schema_format_bounds(&counted, bounds, sizeof bounds);
        report_at(r->report, yaml_place(node->start_mark), path, "must have %s %s, not %zu", bounds, things, count);
        return false;
    }
    if (count > MAX_LIST) {
        report_at(r->report, yaml_place(node->start_mark), path, "has more than %u %s", MAX_LIST, things);
        return false;
    }
    return true;
}

static void apply_defaults(struct schema_reader *r, struct schema_level *level, const char *prefix, const char *path,
                           struct schema_place place);

static void read_kind(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, struct schema_kind *out,
                      const char *path);

static void read_element(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, void *element,
                         const char *path)
{
    char prefix[SCHEMA_MAX_PATH], why[WHY_BYTES], whole[PATH_MAX];
    struct schema_place place = yaml_place(node->start_mark);
    report_place(r->report, path, place);
    if (row->type == SCHEMA_KINDS) {
        read_kind(r, row, node, element, path);
        return;
    }
    if (row->type == SCHEMA_LIST) {
        struct schema_level level = {element, need_alloc(r->schema->n_rows * sizeof(bool))};
        snprintf(prefix, sizeof prefix, "%s[]", row->path);
        if (!yaml_is_null(node))
            read_map(r, &level, node, prefix, path);
        apply_defaults(r, &level, prefix, path, place);
        free(level.seen);
        return;
    }
    const char *text = scalar_text(r, node, path);
    if (!text)
        text = row->type == SCHEMA_INTS ? "0" : "";
    const struct schema_row scalar = {.type = row->type == SCHEMA_INTS ? SCHEMA_INT : SCHEMA_STRING};
    if (!schema_set_scalar(&scalar, beside_file(r, row, node, text, whole), element, why, sizeof why))
        report_at(r->report, place, path, "%s", why);
}

static void read_sequence(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, void *base,
                          const char *path)
{
    struct schema_list *list = (struct schema_list *)((char *)base + row->offset);
    if (node->type != YAML_SEQUENCE_NODE) {
        report_at(r->report, yaml_place(node->start_mark), path, "must be a list, not %s", yaml_kind(node));
        return;
    }
    size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    if (!count_allowed(r, row, node, count, path) || count == 0)
        return;
    size_t size = row->type == SCHEMA_LIST    ? row->elem_size
                  : row->type == SCHEMA_INTS  ? sizeof(int64_t)
                  : row->type == SCHEMA_KINDS ? sizeof(struct schema_kind)
                                              : sizeof(char *);
    list->data = need_alloc(count * size);
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
    struct schema_place place = yaml_place(node->start_mark);
    const struct schema_row number = {.type = SCHEMA_INT,
                                      .min = row->min,
                                      .max = schema_row_bounded(row) ? row->max : MAX_LIST,
                                      .choices = row->choices};
    char why[WHY_BYTES];
    int64_t count = 0;
    const char *text = scalar_text(r, node, path);
    if (!text)
        return;
    if (!schema_set_scalar(&number, text, &count, why, sizeof why)) {
        report_at(r->report, place, path, "%s", why);
        return;
    }
    if (count <= 0)
        return;
    char **strings = list->data = need_alloc((size_t)count * sizeof *strings);
    for (; list->count < (uint64_t)count; list->count++)
        strings[list->count] = need_text("");
}

/* Returns the text of a list of scalars, "[a, b]", to be freed; NULL: reported. */
static char *tuple_text(struct schema_reader *r, const yaml_node_t *node, const char *path)
{
    char *text = need_text("["), *longer;
    if (node->data.sequence.items.top - node->data.sequence.items.start > (ptrdiff_t)MAX_LIST) {
        report_at(r->report, yaml_place(node->start_mark), path, "has more than %u elements", MAX_LIST);
        free(text);
        return NULL;
    }
    for (int *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
        const char *word = scalar_text(r, yaml_document_get_node(r->document, *item), path);
        longer = word ? need_print("%s%s%s", text, text[1] ? ", " : "", word) : NULL;
        free(text);
        if (!longer)
            return NULL;
        text = longer;
    }
    longer = need_print("%s]", text);
    free(text);
    return longer;
}

/* Reads one "name: value" of a free map. */
static void read_option(struct schema_reader *r, enum schema_type type, struct schema_list *list, yaml_node_t *key,
                        yaml_node_t *value, const char *path)
{
    const char *name = scalar_text(r, key, path);
    if (!name)
        return;
    char option_path[SCHEMA_MAX_PATH];
    schema_join(option_path, sizeof option_path, path, name, strlen(name));
    if (strlen(name) > MAX_NAME) {
        report_at(r->report, yaml_place(key->start_mark), path, "has a key of more than %u bytes", MAX_NAME);
        return;
    }
    rp_option *options = list->data;
    for (uint32_t i = 0; i < list->count; i++) {
        if (strcmp(options[i].name, name) == 0) {
            report_at(r->report, yaml_place(key->start_mark), option_path, "is given twice");
            return;
        }
    }
    report_place(r->report, option_path, yaml_place(value->start_mark));
    bool tuple = type == SCHEMA_TUPLES && value->type == YAML_SEQUENCE_NODE;
    const char *scalar = tuple ? NULL : scalar_text(r, value, option_path);
    char *text = tuple ? tuple_text(r, value, option_path) : scalar ? need_text(scalar) : NULL;
    if (text)
        options[list->count++] = (rp_option){need_text(name), text};
}

static void read_options(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node,
                         struct schema_list *list, const char *path)
{
    if (node->type != YAML_MAPPING_NODE) {
        report_at(r->report, yaml_place(node->start_mark), path, "must be a map of options, not %s", yaml_kind(node));
        return;
    }
    size_t count = (size_t)(node->data.mapping.pairs.top - node->data.mapping.pairs.start);
    if (!count_allowed(r, row, node, count, path) || count == 0)
        return;
    list->data = need_alloc(count * sizeof(rp_option));
    for (size_t i = 0; i < count; i++) {
        yaml_node_pair_t pair = node->data.mapping.pairs.start[i];
        read_option(r, row->type, list, yaml_document_get_node(r->document, pair.key),
                    yaml_document_get_node(r->document, pair.value), path);
    }
}

/* Takes the word out of the options of a map. */
static char *take_kind(struct schema_list *options)
{
    rp_option *list = options->data;
    for (uint32_t i = 0; i < options->count; i++) {
        char *kind = (char *)list[i].value;
        if (strcmp(list[i].name, "kind") != 0)
            continue;
        free((char *)list[i].name);
        memmove(&list[i], &list[i + 1], (--options->count - i) * sizeof *list);
        return kind;
    }
    return NULL;
}

static void read_kind(struct schema_reader *r, const struct schema_row *row, yaml_node_t *node, struct schema_kind *out,
                      const char *path)
{
    const struct schema_row options = {.type = SCHEMA_OPTIONS, .max = MAX_OPTIONS};
    if (node->type == YAML_SEQUENCE_NODE) {
        report_at(r->report, yaml_place(node->start_mark), path, "must be a word, or a map with a kind, not a list");
    } else if (node->type == YAML_MAPPING_NODE) {
        read_options(r, &options, node, &out->options, path);
        out->kind = take_kind(&out->options);
    } else {
        const char *word = scalar_text(r, node, path);
        out->kind = word ? need_text(word) : NULL;
    }
    if (!out->kind)
        out->kind = need_text(row->default_text ? row->default_text : "");
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
    case SCHEMA_KINDS:
        read_sequence(r, row, node, base, path);
        break;
    case SCHEMA_KIND:
        read_kind(r, row, node, (struct schema_kind *)((char *)base + row->offset), path);
        break;
    case SCHEMA_COUNT:
        if (node->type == YAML_SCALAR_NODE)
            read_count(r, row, node, base, path);
        else
            read_sequence(r, row, node, base, path);
        break;
    case SCHEMA_OPTIONS:
    case SCHEMA_TUPLES:
        read_options(r, row, node, (struct schema_list *)((char *)base + row->offset), path);
        break;
    default: {
        const char *text = scalar_text(r, node, path);
        if (!text || schema_set_scalar(row, beside_file(r, row, node, text, whole), base, why, sizeof why))
            break;
        report_at(r->report, yaml_place(node->start_mark), path, "%s", why);
        if (row->default_text && row->type != SCHEMA_STRING) /* so that checks do not complain of the value once more */
            schema_set_scalar(row, row->default_text, base, why, sizeof why);
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
    return !found && end != key ? end : found; /* an alias may stand for an option, which has no row */
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
        names[n++] = need_print("%.*s", (int)length, name);
    }
    const char *near = find_elsewhere(r->schema, prefix, key);
    if (!near)
        near = schema_nearest(key, names, n);
    report_at(r->report, place, path, "unknown key%s%s%s", near ? " (did you mean '" : "", near ? near : "",
              near ? "'?)" : "");
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
    struct schema_place place = yaml_place(key->start_mark);
    if (key->type != YAML_SCALAR_NODE) {
        report_at(r->report, place, path, "a key must be a word, not %s", yaml_kind(key));
        return;
    }
    const char *name = (const char *)key->data.scalar.value;
    char below[SCHEMA_MAX_PATH], key_path[SCHEMA_MAX_PATH];
    schema_join(key_path, sizeof key_path, path, name, strnlen(name, MAX_NAME));
    bool group = false;
    const struct schema_row *row = find_row(r->schema, prefix, name, &group);
    if (!row) {
        report_unknown(r, prefix, name, place, key_path);
        return;
    }
    uint32_t line = map_add(map, row, place);
    if (line) {
        report_at(r->report, place, key_path, "is given twice (first on line %u)", line);
        return;
    }
    struct schema_place value_place = yaml_place(value->start_mark);
    if ((!group && value->type == YAML_SCALAR_NODE) || value_place.line >= OVERRIDE_LINE)
        place = value_place;
    report_place(r->report, key_path, place);
    /* An empty group or list, such as one whose lines are all commented out, counts as absent. */
    bool scalar = !group && row->type <= SCHEMA_ENUM;
    if (yaml_is_null(value) && !scalar)
        return;
    if (group) {
        schema_join(below, sizeof below, prefix, name, strlen(name));
        read_map(r, level, value, below, key_path);
        return;
    }
    level->seen[row - r->schema->rows] = true;
    read_value(r, row, value, level->base, key_path);
}

static void read_map(struct schema_reader *r, struct schema_level *level, yaml_node_t *map, const char *prefix,
                     const char *path)
{
    if (map->type != YAML_MAPPING_NODE) {
        report_at(r->report, yaml_place(map->start_mark), path, "must be a map of keys, not %s", yaml_kind(map));
        return;
    }
    struct schema_map self = {prefix, path, need_alloc(r->schema->n_rows * sizeof(struct key_line)), 0};
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
        char *plain = quoted ? need_print("%.*s", (int)n - 2, text + 1) : need_text(text);
        if (!schema_set_scalar(row, plain, base, why, sizeof why))
            report_at(r->report, place, path, "(default) %s", why);
        free(plain);
        return;
    }
    yaml_document_t document;
    if (text[0] == '\0')
        return;
    yaml_load(text, strlen(text), &document);
    struct schema_reader inner = {r->schema, r->report, &document, NULL};
    yaml_node_t *node = yaml_document_get_root_node(&document);
    if (node)
        read_value(&inner, row, node, base, path);
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
        if ((row->type == SCHEMA_STRING || row->type == SCHEMA_PATH || row->type == SCHEMA_KIND) && !*string)
            *string = need_text("");
    }
}

/* ---------------------------------------------------------------------------------------------------------- options */

void schema_read_options(const struct schema *schema, const struct schema_list *options, const char *path, void *root,
                         struct schema_report *report)
{
    const rp_option *given = options->data;
    const char *names[MAX_OPTIONS] = {0};
    char why[WHY_BYTES], at[SCHEMA_MAX_PATH];
    for (uint32_t i = 0; i < schema->n_rows; i++) {
        names[i] = schema->rows[i].path;
        schema_set_scalar(&schema->rows[i], schema->rows[i].default_text, root, why, sizeof why);
    }
    for (uint32_t k = 0; k < options->count; k++) {
        uint32_t i = 0;
        while (i < schema->n_rows && strcmp(schema->rows[i].path, given[k].name) != 0)
            i++;
        schema_join(at, sizeof at, path, given[k].name, strlen(given[k].name));
        if (i < schema->n_rows) {
            if (!schema_set_scalar(&schema->rows[i], given[k].value, root, why, sizeof why))
                schema_problem(report, at, "%s", why);
            continue;
        }
        const char *near = find_elsewhere(schema, "", given[k].name);
        near = near ? near : schema_nearest(given[k].name, names, schema->n_rows);
        schema_problem(report, at, "unknown key%s%s%s", near ? " (did you mean '" : "", near ? near : "",
                       near ? "'?)" : "");
    }
}

bool schema_next(const char **at, char *out, size_t size)
{
    *at += strspn(*at, "[ ,");
    size_t length = strcspn(*at, " ,]");
    if (length == 0 || length >= size)
        return false;
    memcpy(out, *at, length);
    out[length] = '\0';
    *at += length;
    return true;
}

/* ------------------------------------------------------------------------------------------------------ whole texts */

/* Loads the document of a text that yaml_scan has accepted. False: reported. */
static bool open_document(struct schema_report *report, const char *text, size_t size, yaml_document_t *document)
{
    if (size > MAX_FILE) {
        report_at(report, nowhere, "", "is larger than %u KiB", MAX_FILE / 1024);
        return false;
    }
    if (!yaml_scan(report, text, size))
        return false;
    yaml_load(text, size, document);
    return true;
}

/* Applies the overrides. An empty document becomes an empty map first. */
static bool apply_overrides(yaml_document_t *document, const char *const *overrides, struct schema_report *report)
{
    const yaml_node_t *node = yaml_document_get_root_node(document);
    if (!overrides || !overrides[0])
        return true;
    if (!node || yaml_is_null(node)) {
        yaml_document_delete(document);
        yaml_load("{}", 2, document);
        node = yaml_document_get_root_node(document);
    }
    /* The reader reports a root that is not a map. */
    return node->type != YAML_MAPPING_NODE || override_all(document, overrides, report);
}

/* Gives the root, or the value of the section's key; NULL counts as an empty map. False: reported. */
static bool find_section(const struct schema_reader *r, const char *section, yaml_node_t **out)
{
    yaml_node_t *node = yaml_document_get_root_node(r->document);
    *out = node;
    if (!section)
        return true;
    bool map = node && node->type == YAML_MAPPING_NODE;
    const int *slot = map ? yaml_find(r->document, node, section, strlen(section)) : NULL;
    *out = slot ? yaml_document_get_node(r->document, *slot) : NULL;
    if (*out)
        return true;
    report_at(r->report, nowhere, "", "has no section '%s'", section);
    return false;
}

static bool fill(struct schema_reader *r, const char *section, void *root)
{
    yaml_node_t *node;
    if (!find_section(r, section, &node))
        return false;
    const struct schema_place top = section && node ? yaml_place(node->start_mark) : (struct schema_place){1, 1};
    struct schema_level level = {root, need_alloc(r->schema->n_rows * sizeof(bool))};
    schema_report_within(r->report, section);
    report_place(r->report, "", top);
    if (node && !yaml_is_null(node))
        read_map(r, &level, node, "", "");
    apply_defaults(r, &level, "", "", top);
    free(level.seen);
    if (r->schema->check) {
        r->report->quiet = true;
        r->schema->check(root, r->report);
        r->report->quiet = false;
    }
    schema_report_within(r->report, NULL);
    return true;
}

static bool read_bytes(const struct schema *schema, const struct schema_source *source, const char *text, size_t size,
                       void *root, struct schema_report *report)
{
    const char *name = source->file ? source->file : source->name;
    report_begin(report, name);
    uint32_t before = schema_report_count(report);
    yaml_document_t document;
    if (!open_document(report, text, size, &document))
        return false;
    struct schema_reader r = {schema, report, &document, source->file};
    report->overrides = source->overrides;
    if (apply_overrides(&document, source->overrides, report)) {
        report_begin(report, name);
        fill(&r, source->section, root);
    }
    report->overrides = NULL;
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
    char *data = need_alloc(MAX_FILE + 1);
    ssize_t size = slurp(source->file, data, MAX_FILE);
    bool ok = false;
    if (size >= 0) {
        ok = read_bytes(schema, source, data, (size_t)size, root, report);
    } else {
        int error = errno;
        report_begin(report, source->file);
        report_at(report, nowhere, "", "cannot be read: %s", strerror(error));
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
