/* The list of problems of one configuration, and the places where its keys were written. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "proto/config/schema_impl.h"

#define MAX_PROBLEMS 200u
#define MAX_PLACES (1u << 20)

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
    const char *const *overrides; /* borrowed */
    struct problem *problems;
    uint32_t n_problems, room_problems;
    uint32_t total; /* including those past MAX_PROBLEMS */
    struct written *places;
    uint32_t n_places, room_places;
    bool quiet;
    char *text; /* of all problems, made on demand */
};

struct schema_report *schema_report_new(void)
{
    return calloc(1, sizeof(struct schema_report));
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

void schema_report_begin(struct schema_report *self, const char *file)
{
    forget_places(self);
    free(self->file);
    self->file = strdup(file);
    self->quiet = false;
    self->section = NULL;
}

void schema_report_overrides(struct schema_report *self, const char *const *overrides)
{
    self->overrides = overrides;
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

void schema_report_quiet(struct schema_report *self, bool quiet)
{
    self->quiet = quiet;
}

/* Makes room for one more element. False: no memory. */
static bool grow(void **data, uint32_t *room, uint32_t used, size_t size)
{
    if (used < *room)
        return true;
    uint32_t more = *room ? *room * 2 : 16;
    void *bigger = realloc(*data, more * size);
    if (!bigger)
        return false;
    *data = bigger;
    *room = more;
    return true;
}

void schema_report_place(struct schema_report *self, const char *path, struct schema_place place)
{
    if (self->n_places >= MAX_PLACES ||
        !grow((void **)&self->places, &self->room_places, self->n_places, sizeof *self->places))
        return;
    char whole[SCHEMA_MAX_PATH];
    struct written *written = &self->places[self->n_places];
    *written = (struct written){strdup(whole_path(self, path, whole, sizeof whole)), place};
    if (written->path)
        self->n_places++;
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
            return (struct schema_place){0, 0};
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
    char *name = NULL;
    if (place.line < SCHEMA_OVERRIDE_LINE || !self->overrides)
        return strdup(self->file ? self->file : "-");
    if (asprintf(&name, "override '%.200s'", self->overrides[place.line - SCHEMA_OVERRIDE_LINE]) < 0)
        return NULL;
    return name;
}

/* Adds a problem; `path` starts at the root. */
static void add(struct schema_report *self, struct schema_place place, const char *path, const char *format,
                va_list args)
{
    for (uint32_t i = 0; self->quiet && i < self->n_problems; i++) {
        if (related(self->problems[i].path, path))
            return;
    }
    free(self->text);
    self->text = NULL;
    self->total++;
    if (self->n_problems >= MAX_PROBLEMS ||
        !grow((void **)&self->problems, &self->room_problems, self->n_problems, sizeof *self->problems))
        return;
    char *text = NULL;
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    struct problem problem = {place, self->n_problems, name_source(self, place), strdup(path), text};
    if (!problem.file || !problem.path || !problem.text) {
        free(problem.file);
        free(problem.path);
        free(problem.text);
        return;
    }
    self->problems[self->n_problems++] = problem;
}

void schema_report_at(struct schema_report *self, struct schema_place place, const char *path, const char *format, ...)
{
    char whole[SCHEMA_MAX_PATH];
    va_list args;
    va_start(args, format);
    add(self, place, whole_path(self, path, whole, sizeof whole), format, args);
    va_end(args);
}

void schema_problem(struct schema_report *self, const char *path, const char *format, ...)
{
    char whole[SCHEMA_MAX_PATH];
    path = whole_path(self, path, whole, sizeof whole);
    va_list args;
    va_start(args, format);
    add(self, find_place(self, path), path, format, args);
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
    if (problem->place.line > 0 && problem->place.line < SCHEMA_OVERRIDE_LINE)
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
    if (!out)
        return "out of memory\n";
    if (self->n_problems > 0)
        qsort(cache->problems, self->n_problems, sizeof *self->problems, by_place);
    for (uint32_t i = 0; i < self->n_problems; i++)
        print_problem(out, &self->problems[i]);
    if (self->total > self->n_problems)
        fprintf(out, "and %u more\n", self->total - self->n_problems);
    fclose(out);
    return cache->text ? cache->text : "out of memory\n";
}
