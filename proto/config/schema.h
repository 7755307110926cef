/* Configuration as data: one row per key with type, default, bounds and help. The rows drive parsing, unknown-key
 * errors with line, column and "did you mean", --print-config, and the reference in docs/CONFIG.md.
 *
 * A row's path is written with dots; "[]" stands for the elements of a list: "tables[].sampler.kind". The reader walks
 * a libyaml document; every mistake is reported, not only the first. Values are written into plain structs through
 * offsets, so the program never sees YAML. */
#ifndef PROTO_SCHEMA_H
#define PROTO_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "replay/error.h"
#include "replay/plugin.h" /* rp_option */

enum schema_type {
    SCHEMA_BOOL,    /* bool */
    SCHEMA_INT,     /* int64_t; "1_000", "1e6", "2k", "3M" are understood */
    SCHEMA_REAL,    /* double; ".inf" allowed if the bounds allow it */
    SCHEMA_BYTES,   /* int64_t; "4GiB", "500MB", "65536" */
    SCHEMA_TIME,    /* int64_t nanoseconds; "60s", "5ms", "1h"; a bare number is an error that says to add a unit */
    SCHEMA_STRING,  /* char *, owned by the config */
    SCHEMA_PATH,    /* char *; what is found beside the configuration file is meant there */
    SCHEMA_ENUM,    /* int32_t, index into choices */
    SCHEMA_LIST,    /* struct schema_list of structs of elem_size; the rows below it are those with path "p[]..." */
    SCHEMA_STRINGS, /* struct schema_list of char * */
    SCHEMA_PATHS,   /* the same, of paths */
    SCHEMA_INTS,    /* struct schema_list of int64_t */
    SCHEMA_OPTIONS, /* struct schema_list of rp_option: a free map of scalars, checked by whoever uses it */
};

struct schema_list {
    void *data;
    uint32_t count;
};

struct schema_row {
    const char *path;
    enum schema_type type;
    size_t offset;            /* in the root struct, or in the list element's struct below a "[]" */
    const char *default_text; /* as it would be written in YAML; NULL: required (scalars) or empty (lists, strings) */
    double min, max; /* inclusive, for numbers (in base units) and for the length of lists; both 0: unbounded */
    const char *const
        *choices;     /* enum: NULL-terminated; int: words for 0, 1, ..., which are not written as numbers then */
    size_t elem_size; /* list */
    const char *help;
};

struct schema_report;

/* What users of other systems write: "lr" for "agent.learning_rate". Only for "did you mean". */
struct schema_alias {
    const char *word;
    const char *path; /* the end of a row's path, from the start of a component on */
};

struct schema {
    const char *name; /* "broker" */
    const struct schema_row *rows;
    uint32_t n_rows;
    size_t root_size;
    /* Optional: checks that concern several keys. Reports through schema_problem. */
    void (*check)(const void *root, struct schema_report *report);
    const struct schema_alias *aliases; /* up to one without a word; or NULL */
};

/* Collects problems as "file:line:column: path: what is wrong (did you mean 'x'?)", in file order. */
struct schema_report *schema_report_new(void);
void schema_report_destroy(struct schema_report **self);
/* Adds one at the place where `path` ("tables[2].limiter") was written, or at the nearest parent that was. */
void schema_problem(struct schema_report *self, const char *path, const char *format, ...) RP_PRINTF(3, 4);
uint32_t schema_report_count(const struct schema_report *self);
/* All problems, one per line. Borrowed. */
const char *schema_report_text(const struct schema_report *self);
/* The paths of problems that come from here on are below `section`; NULL: below the root again. For checks that one
 * schema borrows from another. The text is borrowed until then. */
void schema_report_within(struct schema_report *self, const char *section);

struct schema_source {
    const char *file; /* its path; NULL: `text` is read, and `name` stands for the file's name */
    const char *name, *text;
    const char *section;          /* read what stands below this key of the document, and nothing else; NULL: all */
    const char *const *overrides; /* NULL-terminated: "tables[0].max_size=5" is put into the document first; or NULL */
};

/* Fill *root (root_size bytes, zeroed by the caller) from a source; from a file; from a string ("name" stands for the file
 * name), or the defaults alone (text ""). False: see the report. The result is given to the caller: schema_free.
 *
 * The path of an override begins at the root of the document, also with a section; its value is YAML. */
bool schema_read(const struct schema *schema, const struct schema_source *source, void *root,
                 struct schema_report *report);
bool schema_read_file(const struct schema *schema, const char *path, void *root, struct schema_report *report);
bool schema_read_text(const struct schema *schema, const char *name, const char *text, void *root,
                      struct schema_report *report);
void schema_free(const struct schema *schema, void *root);

/* Prints the whole configuration as YAML that reads back to the same, each key with its help as a comment.
 * print is fprintf-like through a FILE * opened by the caller. */
void schema_print(const struct schema *schema, const void *root, FILE *out);
/* The reference for docs/CONFIG.md as a Markdown table. */
void schema_print_reference(const struct schema *schema, FILE *out);

/* Scalars with units, for command lines too. False leaves *out alone. */
bool schema_parse_bytes(const char *text, int64_t *out);
bool schema_parse_time(const char *text, int64_t *out_ns);
bool schema_parse_int(const char *text, int64_t *out);
bool schema_parse_real(const char *text, double *out);

/* The nearest of n names by edit distance, or NULL if none is near: for "did you mean". */
const char *schema_nearest(const char *name, const char *const *names, uint32_t n);

#endif
