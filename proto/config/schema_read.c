/* Reads a configuration: the list of its problems, the YAML as a tree of nodes that know their places, overrides, which change
 * the tree, and the tree into a struct. */
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

#include "proto/base/arena.h"
#include "proto/base/io.h"
#include "proto/base/need.h"
#include "proto/base/text.h"
#include "proto/base/utf8.h"
#include "proto/config/schema.h"
#include "proto/config/schema_row.h"

#define MAX_FILE (1u << 20)
#define MAX_DEPTH 32u
#define MAX_LIST 4096u  /* elements, if the row has no bound */
#define MAX_NAME 128u   /* bytes of a free option's name */
#define MAX_OPTIONS 32u /* of a kind */

#define MAX_PROBLEMS 200u
#define WHY_BYTES 512

/* A place in the file, counted from 1; line 0: not in a file. Lines from OVERRIDE_LINE on stand for the overrides, in their
 * order. */
#define OVERRIDE_LINE (1u << 30)
struct schema_place {
    uint32_t line, column;
};
static const struct schema_place nowhere = {0, 0};

/* ---- the tree ---- */

enum node_kind { NODE_VALUE, NODE_LIST, NODE_MAP };

struct node {
    enum node_kind kind;
    bool plain; /* a value without quotes */
    struct schema_place place;
    const char *text; /* of a value */
    size_t size;
    const struct node *key;           /* of a member of a map */
    struct node *first, **end, *next; /* elements or members; the next one of the same list or map */
    uint32_t n;
};

/* One part of a path: a key, or the number of an element. */
struct step {
    const char *name; /* NULL: an element */
    size_t length, index;
};

static struct node *node_new(struct arena *memory, enum node_kind kind, struct schema_place place)
{
    struct node *self = arena_take(memory, 1, sizeof *self);
    self->kind = kind;
    self->place = place;
    self->end = &self->first;
    return self;
}

static struct node *node_value(struct arena *memory, const void *text, size_t size, bool plain,
                               struct schema_place place)
{
    struct node *self = node_new(memory, NODE_VALUE, place);
    char *copy = arena_take(memory, size + 1, 1);
    self->text = memcpy(copy, text, size);
    self->size = size;
    self->plain = plain;
    return self;
}

static void node_add(struct node *self, const struct node *key, struct node *child)
{
    child->key = key;
    *self->end = child;
    self->end = &child->next;
    self->n++;
}

/* Returns "a map", "a list" or "a single value". */
static const char *kind_name(const struct node *self)
{
    return self->kind == NODE_MAP ? "a map" : self->kind == NODE_LIST ? "a list" : "a single value";
}

/* True for "key:", "key: ~" and "key: null". */
static bool is_null(const struct node *self)
{
    return self->kind == NODE_VALUE && self->plain &&
           (self->text[0] == '\0' || strcmp(self->text, "~") == 0 || strcasecmp(self->text, "null") == 0);
}

/* Returns where the parent keeps a child; it is NULL there if there is none. */
static struct node **find_child(struct node *self, const struct step *step)
{
    size_t i = 0;
    struct node **at = &self->first;
    for (; *at; at = &(*at)->next, i++) {
        const struct node *key = (*at)->key;
        if (step->name ? key && key->kind == NODE_VALUE && key->size == step->length &&
                             memcmp(key->text, step->name, step->length) == 0
                       : !key && i == step->index)
            break;
    }
    return at;
}

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
    return out->length > 0 && utf8_valid(out->name, out->length);
}

/* ---- the report: problems, and the document that they are about ---- */

struct problem {
    struct schema_place place;
    uint32_t order;
    char *file, *path, *text;
};

struct schema_report {
    char *file;
    const char *section;          /* borrowed; prefix of every path, or NULL */
    const char *const *overrides; /* borrowed while they are applied */
    struct problem *problems;
    uint32_t n_problems;
    uint32_t total;      /* including those past MAX_PROBLEMS */
    struct node *root;   /* of the last document; NULL: it was not loaded */
    struct arena memory; /* of its nodes */
    bool quiet;          /* drops problems of a path that has one itself, or above or below it: they are consequences */
    char *text;          /* of all problems, made on demand */
};

struct schema_report *schema_report_new(void)
{
    return need_alloc(sizeof(struct schema_report));
}

void schema_report_destroy(struct schema_report **self)
{
    struct schema_report *r = *self;
    if (!r)
        return;
    arena_fini(&r->memory);
    for (uint32_t i = 0; i < r->n_problems; i++) {
        free(r->problems[i].file);
        free(r->problems[i].path);
        free(r->problems[i].text);
    }
    free(r->problems);
    free(r->file);
    free(r->text);
    free(r);
    *self = NULL;
}

/* Starts a new file: drops the document of the last one. Each problem begins with `file`. */
static void report_begin(struct schema_report *self, const char *file)
{
    arena_fini(&self->memory);
    self->root = NULL;
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

/* Returns the node at a path, or the nearest one above it. *whole: it is the node itself. NULL: there is no document. */
static const struct node *find_node(const struct schema_report *self, const char *path, bool *whole)
{
    struct step step;
    struct node *node = self->root, *child = node;
    for (const char *at = path; child && *at && next_step(&at, at == path, &step);) {
        child = *find_child(node, &step);
        node = child ? child : node;
    }
    *whole = child != NULL;
    return node;
}

bool schema_is_written(const struct schema_report *self, const char *path)
{
    bool whole;
    find_node(self, path, &whole);
    return whole;
}

/* Returns the place of path, or of its nearest parent that was written. A list or map is where its key stands. */
static struct schema_place find_place(const struct schema_report *self, const char *path)
{
    bool whole;
    const struct node *node = find_node(self, path, &whole);
    if (!node)
        return nowhere;
    return node->key && node->kind != NODE_VALUE && node->place.line < OVERRIDE_LINE ? node->key->place : node->place;
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

/* ---- libyaml: events become nodes. Constructs by which one place of the file stands for several values are refused ---- */

struct loader {
    struct schema_report *report;
    const struct schema_place *at; /* the place of all nodes; NULL: their own */
    struct node *root;
    struct node *open[MAX_DEPTH], *keys[MAX_DEPTH]; /* lists and maps that have not ended; the last key of each map */
    uint32_t depth, documents;
};

static struct schema_place yaml_place(yaml_mark_t mark)
{
    return (struct schema_place){(uint32_t)mark.line + 1, (uint32_t)mark.column + 1};
}

static void refuse_marks(struct loader *self, const yaml_event_t *event, const yaml_char_t *anchor,
                         const yaml_char_t *tag)
{
    struct schema_place place = yaml_place(event->start_mark);
    if (anchor)
        report_at(self->report, place, "", "anchors and aliases (%.64s) are not supported: write the value again",
                  (const char *)anchor);
    if (tag)
        report_at(self->report, place, "", "tags (%.64s) are not supported", (const char *)tag);
}

static void load_node(struct loader *self, struct node *node)
{
    struct node *parent = self->depth > 0 ? self->open[self->depth - 1] : NULL;
    struct node **key = parent ? &self->keys[self->depth - 1] : NULL;
    if (!parent) {
        self->root = node;
    } else if (parent->kind == NODE_MAP && !*key) {
        *key = node;
    } else {
        node_add(parent, *key, node);
        *key = NULL;
    }
}

/* Returns false if nothing more can be read. */
static bool load_event(struct loader *self, const yaml_event_t *event)
{
    struct arena *memory = &self->report->memory;
    struct schema_place here = yaml_place(event->start_mark), place = self->at ? *self->at : here;
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        refuse_marks(self, event, event->data.alias.anchor, NULL);
        load_node(self, node_value(memory, "", 0, true, place));
        return true;
    case YAML_SCALAR_EVENT:
        refuse_marks(self, event, event->data.scalar.anchor, event->data.scalar.tag);
        load_node(self, node_value(memory, event->data.scalar.value, event->data.scalar.length,
                                   event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE, place));
        return true;
    case YAML_DOCUMENT_START_EVENT:
        if (++self->documents == 2)
            report_at(self->report, here, "", "only one YAML document is allowed in a file");
        return self->documents < 2;
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT: { /* with the same fields */
        refuse_marks(self, event, event->data.mapping_start.anchor, event->data.mapping_start.tag);
        if (self->depth == MAX_DEPTH) {
            report_at(self->report, here, "", "is nested more than %u levels deep", MAX_DEPTH);
            return false;
        }
        struct node *node = node_new(memory, event->type == YAML_MAPPING_START_EVENT ? NODE_MAP : NODE_LIST, place);
        load_node(self, node);
        self->keys[self->depth] = NULL;
        self->open[self->depth++] = node;
        return true;
    }
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        self->depth--;
        return true;
    default:
        return event->type != YAML_STREAM_END_EVENT;
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

/* Loads a text. A text without a value is null. NULL: reported. */
static struct node *load(struct schema_report *report, const char *text, size_t size, const struct schema_place *at)
{
    struct loader self = {.report = report, .at = at};
    yaml_parser_t parser;
    uint32_t before = schema_report_count(report);
    if (!yaml_parser_initialize(&parser))
        need_fail(sizeof parser);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    for (bool more = true; more;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            report_syntax(report, &parser);
            break;
        }
        more = load_event(&self, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (!self.root)
        self.root = node_value(&report->memory, "", 0, true, at ? *at : (struct schema_place){1, 1});
    return schema_report_count(report) == before ? self.root : NULL;
}

/* ---- overrides: "agent.hidden=[64, 64]" changes the tree before it is read, so that values of a command line are checked like
 * those of the file. Nodes from an override carry its number in place of a line. */

/* Loads the value of an override; NULL: reported at the override. Nothing after "=" is an empty string. */
static struct node *override_value(struct schema_report *report, const char *override, const char *text,
                                   const struct schema_place *place)
{
    if (text[0] == '\0')
        return node_value(&report->memory, "", 0, false, *place);
    char *file = report->file;
    report->file = need_print("override '%.200s'", override);
    struct node *value = load(report, text, strlen(text), place);
    free(report->file);
    report->file = file;
    return value;
}

/* Checks that a node can have such a child. False: reported. */
static bool may_have(struct schema_report *report, struct schema_place place, const struct node *node,
                     const struct step *step, const char *path, int length)
{
    if (node->kind != (step->name ? NODE_MAP : NODE_LIST))
        report_at(report, place, "", "'%.*s' is %s, not %s%s", length, path, kind_name(node),
                  step->name ? "a map of keys" : "a list",
                  step->name && node->kind == NODE_LIST ? ": write the number of an element behind it, from [0] on"
                                                        : "");
    else if (!step->name && step->index > node->n)
        report_at(report, place, "", "'%.*s' has no element %zu: the next one is %u", length, path, step->index,
                  node->n);
    else
        return true;
    return false;
}

/* Puts a child in the place of another, or behind the last one. */
static void put_child(struct arena *memory, struct node *parent, struct node **slot, const struct step *step,
                      struct node *child)
{
    struct node *old = *slot;
    if (!old) {
        node_add(parent, step->name ? node_value(memory, step->name, step->length, true, child->place) : NULL, child);
        return;
    }
    child->key = old->key;
    child->next = old->next;
    *slot = child;
    if (parent->end == &old->next)
        parent->end = &child->next;
}

/* Stores the value at the path, and makes lists and maps that are missing on the way. */
static void override_put(struct schema_report *report, const char *path, struct node *value)
{
    struct node *parent = report->root;
    for (const char *at = path;;) {
        struct step step;
        int done = (int)(at - path);
        if (!next_step(&at, at == path, &step)) {
            report_at(report, value->place, "", "'%s' is not a path such as tables[0].max_size", path);
            return;
        }
        if (!may_have(report, value->place, parent, &step, path, done))
            return;
        struct node **slot = find_child(parent, &step), *child = *slot;
        bool last = *at == '\0';
        if (last || !child || is_null(child)) {
            child = last ? value : node_new(&report->memory, *at == '[' ? NODE_LIST : NODE_MAP, value->place);
            put_child(&report->memory, parent, slot, &step, child);
        }
        if (last)
            return;
        parent = child;
    }
}

/* Applies overrides to a root that is a map. False: reported. */
static bool override_all(struct schema_report *report)
{
    uint32_t before = schema_report_count(report);
    for (uint32_t i = 0; report->overrides && report->overrides[i]; i++) {
        const char *override = report->overrides[i], *sign = strchr(override, '=');
        const struct schema_place place = {OVERRIDE_LINE + i, 1};
        if (!sign) {
            report_at(report, place, "", "has no '=': write KEY=VALUE, such as seed=7");
            continue;
        }
        char *path = need_print("%.*s", (int)(sign - override), override);
        struct node *value = override_value(report, override, sign + 1, &place);
        if (value)
            override_put(report, path, value);
        free(path);
    }
    return schema_report_count(report) == before;
}

/* ---- reading: a level is one struct, the root or one element of a list; maps inside it only group its keys ---- */

struct schema_reader {
    const struct schema *schema;
    struct schema_report *report;
    const char *file; /* the file being read; NULL: a text */
};

struct schema_level {
    void *base;
    bool *seen; /* [row] the key was given, correct or not */
};

static void read_map(struct schema_reader *r, struct schema_level *level, struct node *map, const char *prefix,
                     const char *path);

/* Returns the text of a scalar; NULL: the node is not a scalar, which is reported. */
static const char *scalar_text(struct schema_reader *r, const struct node *node, const char *path)
{
    if (node->kind != NODE_VALUE)
        report_at(r->report, node->place, path, "must be a single value, not %s", kind_name(node));
    else if (strlen(node->text) != node->size)
        report_at(r->report, node->place, path, "has a zero byte in it");
    else if (is_null(node))
        report_at(r->report, node->place, path, "has no value");
    else
        return node->text;
    return NULL;
}

/* Resolves a path of the file (not of an override) relative to the file, if it exists there. */
static const char *beside_file(const struct schema_reader *r, const struct schema_row *row, const struct node *node,
                               const char *text, char out[PATH_MAX])
{
    if ((row->type != SCHEMA_PATH && row->type != SCHEMA_PATHS) || !r->file || !text[0] || text[0] == '/' ||
        node->place.line >= OVERRIDE_LINE)
        return text;
    char folder[PATH_MAX], joined[2 * PATH_MAX];
    snprintf(folder, sizeof folder, "%s", r->file);
    snprintf(joined, sizeof joined, "%s/%s", dirname(folder), text);
    return realpath(joined, out) ? out : text;
}

/* ------------------------------------------------------------------------------------------------------------ lists */

static bool count_allowed(struct schema_reader *r, const struct schema_row *row, const struct node *node,
                          const char *path)
{
    const char *things = row->type == SCHEMA_OPTIONS || row->type == SCHEMA_TUPLES ? "keys" : "elements";
    if (schema_row_bounded(row) && (node->n < row->min || node->n > row->max)) {
        char bounds[128];
        struct schema_row counted = *row;
        counted.choices = NULL; /* words such as auto stand for the whole list */
        schema_format_bounds(&counted, bounds, sizeof bounds);
        report_at(r->report, node->place, path, "must have %s %s, not %u", bounds, things, node->n);
        return false;
    }
    if (node->n > MAX_LIST) {
        report_at(r->report, node->place, path, "has more than %u %s", MAX_LIST, things);
        return false;
    }
    return true;
}

static void apply_defaults(struct schema_reader *r, struct schema_level *level, const char *prefix, const char *path,
                           struct schema_place place);

static void read_kind(struct schema_reader *r, const struct schema_row *row, struct node *node, struct schema_kind *out,
                      const char *path);

static void read_element(struct schema_reader *r, const struct schema_row *row, struct node *node, void *element,
                         const char *path)
{
    char prefix[SCHEMA_MAX_PATH], why[WHY_BYTES], whole[PATH_MAX];
    struct schema_place place = node->place;
    if (row->type == SCHEMA_KINDS) {
        read_kind(r, row, node, element, path);
        return;
    }
    if (row->type == SCHEMA_LIST) {
        struct schema_level level = {element, need_alloc(r->schema->n_rows * sizeof(bool))};
        snprintf(prefix, sizeof prefix, "%s[]", row->path);
        if (!is_null(node))
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

static void read_sequence(struct schema_reader *r, const struct schema_row *row, struct node *node,
                          struct schema_list *list, const char *path)
{
    if (node->kind != NODE_LIST) {
        report_at(r->report, node->place, path, "must be a list, not %s", kind_name(node));
        return;
    }
    if (!count_allowed(r, row, node, path) || node->n == 0)
        return;
    size_t size = row->type == SCHEMA_LIST    ? row->elem_size
                  : row->type == SCHEMA_INTS  ? sizeof(int64_t)
                  : row->type == SCHEMA_KINDS ? sizeof(struct schema_kind)
                                              : sizeof(char *);
    char *at = list->data = need_alloc(node->n * size);
    for (struct node *element = node->first; element; element = element->next, at += size) {
        char element_path[SCHEMA_MAX_PATH];
        snprintf(element_path, sizeof element_path, "%s[%u]", path, list->count++);
        read_element(r, row, element, at, element_path);
    }
}

/* Reads a number in place of a list: as many empty strings. */
static void read_count(struct schema_reader *r, const struct schema_row *row, struct node *node,
                       struct schema_list *list, const char *path)
{
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
        report_at(r->report, node->place, path, "%s", why);
        return;
    }
    if (count <= 0)
        return;
    char **strings = list->data = need_alloc((size_t)count * sizeof *strings);
    for (; list->count < (uint64_t)count; list->count++)
        strings[list->count] = need_text("");
}

/* Returns the text of a list of scalars, "[a, b]", to be freed; NULL: reported. */
static char *tuple_text(struct schema_reader *r, const struct node *node, const char *path)
{
    struct text out = {0};
    if (node->n > MAX_LIST) {
        report_at(r->report, node->place, path, "has more than %u elements", MAX_LIST);
        return NULL;
    }
    text_add(&out, "[");
    for (const struct node *element = node->first; element; element = element->next) {
        const char *word = scalar_text(r, element, path);
        if (!word) {
            text_fini(&out);
            return NULL;
        }
        text_add(&out, "%s%s", element == node->first ? "" : ", ", word);
    }
    text_add(&out, "]");
    return out.data;
}

/* Reads one "name: value" of a free map. */
static void read_option(struct schema_reader *r, enum schema_type type, struct schema_list *list,
                        const struct node *value, const char *path)
{
    const struct node *key = value->key;
    const char *name = scalar_text(r, key, path);
    if (!name)
        return;
    char option_path[SCHEMA_MAX_PATH];
    schema_join(option_path, sizeof option_path, path, name, strlen(name));
    if (strlen(name) > MAX_NAME) {
        report_at(r->report, key->place, path, "has a key of more than %u bytes", MAX_NAME);
        return;
    }
    rp_option *options = list->data;
    for (uint32_t i = 0; i < list->count; i++) {
        if (strcmp(options[i].name, name) == 0) {
            report_at(r->report, key->place, option_path, "is given twice");
            return;
        }
    }
    bool tuple = type == SCHEMA_TUPLES && value->kind == NODE_LIST;
    const char *scalar = tuple ? NULL : scalar_text(r, value, option_path);
    char *text = tuple ? tuple_text(r, value, option_path) : scalar ? need_text(scalar) : NULL;
    if (text)
        options[list->count++] = (rp_option){need_text(name), text};
}

static void read_options(struct schema_reader *r, const struct schema_row *row, struct node *node,
                         struct schema_list *list, const char *path)
{
    if (node->kind != NODE_MAP) {
        report_at(r->report, node->place, path, "must be a map of options, not %s", kind_name(node));
        return;
    }
    if (!count_allowed(r, row, node, path) || node->n == 0)
        return;
    list->data = need_alloc(node->n * sizeof(rp_option));
    for (const struct node *value = node->first; value; value = value->next)
        read_option(r, row->type, list, value, path);
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

static void read_kind(struct schema_reader *r, const struct schema_row *row, struct node *node, struct schema_kind *out,
                      const char *path)
{
    const struct schema_row options = {.type = SCHEMA_OPTIONS, .max = MAX_OPTIONS};
    if (node->kind == NODE_LIST) {
        report_at(r->report, node->place, path, "must be a word, or a map with a kind, not a list");
    } else if (node->kind == NODE_MAP) {
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

static void read_value(struct schema_reader *r, const struct schema_row *row, struct node *node, void *base,
                       const char *path)
{
    void *at = (char *)base + row->offset;
    char why[WHY_BYTES], whole[PATH_MAX];
    switch (row->type) {
    case SCHEMA_LIST:
    case SCHEMA_STRINGS:
    case SCHEMA_PATHS:
    case SCHEMA_INTS:
    case SCHEMA_KINDS:
        read_sequence(r, row, node, at, path);
        break;
    case SCHEMA_KIND:
        read_kind(r, row, node, at, path);
        break;
    case SCHEMA_COUNT:
        if (node->kind == NODE_VALUE)
            read_count(r, row, node, at, path);
        else
            read_sequence(r, row, node, at, path);
        break;
    case SCHEMA_OPTIONS:
    case SCHEMA_TUPLES:
        read_options(r, row, node, at, path);
        break;
    default: {
        const char *text = scalar_text(r, node, path);
        if (!text || schema_set_scalar(row, beside_file(r, row, node, text, whole), base, why, sizeof why))
            break;
        report_at(r->report, node->place, path, "%s", why);
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
    return text_ends(path, end) && (m == n || path[n - m - 1] == '.');
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

/* Reports an unknown key; place NULL: where its value stands. */
static void report_unknown(struct schema_report *report, const struct schema *schema, const char *prefix,
                           const char *key, const struct schema_place *place, const char *path)
{
    const char *names[128];
    uint32_t n = 0;
    for (uint32_t i = 0; i < schema->n_rows && n < 128; i++) {
        const char *name, *rest;
        size_t length;
        if (schema_row_below(&schema->rows[i], prefix, &name, &length, &rest) && !schema_row_repeats(schema, i, prefix))
            names[n++] = need_print("%.*s", (int)length, name);
    }
    const char *near = find_elsewhere(schema, prefix, key);
    if (!near)
        near = schema_nearest(key, names, n);
    char *text = near ? need_print("unknown key (did you mean '%s'?)", near) : need_text("unknown key");
    if (place)
        report_at(report, *place, path, "%s", text);
    else
        schema_problem(report, path, "%s", text);
    free(text);
    for (uint32_t i = 0; i < n; i++)
        free((char *)names[i]);
}

/* Reads one member of a map. lines: of the keys before it, for each row. */
static void read_member(struct schema_reader *r, struct schema_level *level, struct node *value, uint32_t *lines,
                        const char *prefix, const char *path)
{
    const struct node *key = value->key;
    if (key->kind != NODE_VALUE) {
        report_at(r->report, key->place, path, "a key must be a word, not %s", kind_name(key));
        return;
    }
    char below[SCHEMA_MAX_PATH], key_path[SCHEMA_MAX_PATH];
    schema_join(key_path, sizeof key_path, path, key->text, strnlen(key->text, MAX_NAME));
    bool group = false;
    const struct schema_row *row = find_row(r->schema, prefix, key->text, &group);
    if (!row) {
        report_unknown(r->report, r->schema, prefix, key->text, &key->place, key_path);
        return;
    }
    uint32_t *line = &lines[row - r->schema->rows];
    if (*line) {
        report_at(r->report, key->place, key_path, "is given twice (first on line %u)", *line);
        return;
    }
    *line = key->place.line;
    /* An empty group or list, such as one whose lines are all commented out, counts as absent. */
    bool scalar = !group && row->type <= SCHEMA_ENUM;
    if (is_null(value) && !scalar)
        return;
    if (group) {
        schema_join(below, sizeof below, prefix, key->text, key->size);
        read_map(r, level, value, below, key_path);
        return;
    }
    level->seen[row - r->schema->rows] = true;
    read_value(r, row, value, level->base, key_path);
}

static void read_map(struct schema_reader *r, struct schema_level *level, struct node *map, const char *prefix,
                     const char *path)
{
    if (map->kind != NODE_MAP) {
        report_at(r->report, map->place, path, "must be a map of keys, not %s", kind_name(map));
        return;
    }
    uint32_t *lines = need_alloc(r->schema->n_rows * sizeof *lines);
    for (struct node *value = map->first; value; value = value->next)
        read_member(r, level, value, lines, prefix, path);
    free(lines);
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
    struct schema_reader inner = {r->schema, r->report, NULL};
    struct node *node = text[0] ? load(r->report, text, strlen(text), NULL) : NULL;
    if (node)
        read_value(&inner, row, node, base, path);
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
    char why[WHY_BYTES], at[SCHEMA_MAX_PATH];
    for (uint32_t i = 0; i < schema->n_rows; i++)
        schema_set_scalar(&schema->rows[i], schema->rows[i].default_text, root, why, sizeof why);
    for (uint32_t k = 0; k < options->count; k++) {
        uint32_t i = 0;
        while (i < schema->n_rows && strcmp(schema->rows[i].path, given[k].name) != 0)
            i++;
        schema_join(at, sizeof at, path, given[k].name, strlen(given[k].name));
        if (i == schema->n_rows)
            report_unknown(report, schema, "", given[k].name, NULL, at);
        else if (!schema_set_scalar(&schema->rows[i], given[k].value, root, why, sizeof why))
            schema_problem(report, at, "%s", why);
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

/* Gives the root, or the value of the section's key. NULL: reported. */
static struct node *find_section(const struct schema_reader *r, const char *section)
{
    struct node *node = r->report->root;
    if (!section)
        return node;
    const struct step step = {.name = section, .length = strlen(section)};
    struct node *found = node->kind == NODE_MAP ? *find_child(node, &step) : NULL;
    if (!found)
        report_at(r->report, nowhere, "", "has no section '%s'", section);
    return found;
}

static void fill(struct schema_reader *r, const char *section, void *root)
{
    struct node *node = find_section(r, section);
    if (!node)
        return;
    struct schema_level level = {root, need_alloc(r->schema->n_rows * sizeof(bool))};
    schema_report_within(r->report, section);
    if (!is_null(node))
        read_map(r, &level, node, "", "");
    apply_defaults(r, &level, "", "", node->place);
    free(level.seen);
    if (r->schema->check) {
        r->report->quiet = true;
        r->schema->check(root, r->report);
        r->report->quiet = false;
    }
    schema_report_within(r->report, NULL);
}

/* Loads the document with its overrides. A document without a value is an empty map. False: reported. */
static bool open_document(struct schema_report *report, const char *text, size_t size)
{
    const struct schema_place top = {1, 1};
    if (size > MAX_FILE) {
        report_at(report, nowhere, "", "is larger than %u KiB", MAX_FILE / 1024);
        return false;
    }
    report->root = load(report, text, size, NULL);
    if (!report->root)
        return false;
    if (is_null(report->root))
        report->root = node_new(&report->memory, NODE_MAP, top);
    if (report->root->kind != NODE_MAP)
        return true; /* the reader reports it */
    report->root->place = top;
    return override_all(report);
}

static bool read_bytes(const struct schema *schema, const struct schema_source *source, const char *text, size_t size,
                       void *root, struct schema_report *report)
{
    uint32_t before = schema_report_count(report);
    struct schema_reader r = {schema, report, source->file};
    report_begin(report, source->file ? source->file : source->name);
    report->overrides = source->overrides;
    if (open_document(report, text, size))
        fill(&r, source->section, root);
    report->overrides = NULL;
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
    int fd = open(source->file, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? io_read(fd, data, MAX_FILE + 1, IO_HERE) : -1;
    int error = errno;
    if (fd >= 0)
        close(fd);
    bool ok = size >= 0 && read_bytes(schema, source, data, (size_t)size, root, report);
    if (size < 0) {
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
