/* Configuration as data: one row per key with type, default, bounds and help. The rows drive parsing, unknown-key
 * errors with line, column and "did you mean", --print-config, and the reference in docs/CONFIG.md.
 *
 * The room proto/config owns how configurations (schema*) and command lines (cli) are read; it knows no key of any program. It
 * uses proto/base and libyaml. schema_read.c reads and collects problems, and it alone knows libyaml; schema.c has the rows: what a
 * value may be, and how it is printed; schema_units.c reads and writes numbers with units.
 *
 * A row's path is written with dots; "[]" stands for the elements of a list: "tables[].sampler.kind". The reader walks
 * a tree of nodes; every mistake is reported, not only the first. Values are written into plain structs by
 * offset, so the program never sees YAML. */
#pragma once

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
    SCHEMA_PATH,    /* char *; relative to the configuration file if the path exists there */
    SCHEMA_ENUM,    /* int32_t, index into choices */
    SCHEMA_LIST,    /* struct schema_list of structs of elem_size; the rows of an element have the path "p[]..." */
    SCHEMA_STRINGS, /* struct schema_list of char * */
    SCHEMA_PATHS,   /* the same, of paths */
    SCHEMA_COUNT,   /* the same, or a whole number: as many empty strings, or a word of choices: none.
                       The bounds count strings either way */
    SCHEMA_INTS,    /* struct schema_list of int64_t */
    SCHEMA_OPTIONS, /* struct schema_list of rp_option: a free map of scalars, checked by its user */
    SCHEMA_TUPLES,  /* the same; a value may be a list, whose text is "[a, b]": schema_next */
    SCHEMA_KIND,    /* struct schema_kind: a word, or a map of the word as `kind` with its options */
    SCHEMA_KINDS,   /* struct schema_list of struct schema_kind */
};

struct schema_list {
    void *data;
    uint32_t count;
};

/* One of several kinds of a thing, and the options of that kind. */
struct schema_kind {
    char *kind;
    struct schema_list options; /* rp_option */
};

struct schema_row {
    const char *path;
    enum schema_type type;
    size_t offset;            /* in the root struct, or in the list element's struct below a "[]" */
    const char *default_text; /* as it would be written in YAML; NULL: required (scalars) or empty (lists, strings) */
    double min, max; /* inclusive, for numbers (in base units) and for the length of lists; both 0: unbounded */
    const char *const *choices; /* enum: NULL-terminated; int and time: words, which stand for -1, -2, ... */
    size_t elem_size;           /* list */
    const char *help;
};

struct schema_report;

/* A word that other systems use, such as "lr" for "agent.learning_rate". Only for "did you mean". */
struct schema_alias {
    const char *word;
    const char *path; /* the end of a row's path, from the start of a component on */
};

struct schema {
    const char *name; /* "broker" */
    const struct schema_row *rows;
    uint32_t n_rows;
    size_t root_size;
    /* Optional: derives members from others, and checks what concerns several keys. Reports through schema_problem. */
    void (*check)(void *root, struct schema_report *report);
    const struct schema_alias *aliases; /* ends with an alias without a word; or NULL */
};

/* Collects problems as "file:line:column: path: what is wrong (did you mean 'x'?)", in file order. */
struct schema_report *schema_report_new(void);
void schema_report_destroy(struct schema_report **self);
/* Adds a problem at the place where `path` ("tables[2].limiter") was written, or else its nearest parent. */
void schema_problem(struct schema_report *self, const char *path, const char *format, ...) RP_PRINTF(3, 4);
/* True if the last source that was read has the key "a.b[0].c", be it with the default's value. */
bool schema_is_written(const struct schema_report *self, const char *path);
uint32_t schema_report_count(const struct schema_report *self);
/* Returns all problems, one per line. Borrowed. */
const char *schema_report_text(const struct schema_report *self);
/* Puts the paths of later problems below `section`; NULL: below the root again. For checks that one schema borrows from another.
 * The text is borrowed until the next call. */
void schema_report_within(struct schema_report *self, const char *section);

struct schema_source {
    const char *file; /* its path; NULL: `text` is read, and `name` stands for the file's name */
    const char *name, *text;
    const char *section; /* read only what is below this key of the document; NULL: all */
    const char *const
        *overrides; /* NULL-terminated: "tables[0].max_size=5" changes the document before it is read; or NULL */
};

/* Fill *root (root_size bytes, zeroed by the caller) from a source, or from a string ("name" stands for the file name; the
 * text "" gives the defaults). False: see the report. The caller frees the result with schema_free.
 *
 * The path of an override starts at the root of the document, even with a section; its value is YAML. */
bool schema_read(const struct schema *schema, const struct schema_source *source, void *root,
                 struct schema_report *report);
bool schema_read_text(const struct schema *schema, const char *name, const char *text, void *root,
                      struct schema_report *report);
void schema_free(const struct schema *schema, void *root);

/* Fills *root from options by rows of scalars, each with a default. path: of the options, for the report. */
void schema_read_options(const struct schema *schema, const struct schema_list *options, const char *path, void *root,
                         struct schema_report *report);
/* Copies the next element of a text "[a, b]" or "a", and moves *at behind it. False: none is left, or it is too long. */
bool schema_next(const char **at, char *out, size_t size);

/* Prints the whole configuration as YAML that reads back to the same values, each key with its help as a comment. */
void schema_print(const struct schema *schema, const void *root, FILE *out);
/* Prints the reference for docs/CONFIG.md as a Markdown table. */
void schema_print_reference(const struct schema *schema, FILE *out);

/* Reads a number, which may have a unit, for command lines too. out: double for SCHEMA_REAL; int64_t for SCHEMA_INT,
 * SCHEMA_BYTES and SCHEMA_TIME. False leaves *out unchanged. */
bool schema_parse(enum schema_type type, const char *text, void *out);
#define schema_parse_int(text, out) schema_parse(SCHEMA_INT, text, 1 ? (out) : (int64_t *)NULL)
#define schema_parse_real(text, out) schema_parse(SCHEMA_REAL, text, 1 ? (out) : (double *)NULL)
#define schema_parse_bytes(text, out) schema_parse(SCHEMA_BYTES, text, 1 ? (out) : (int64_t *)NULL)
#define schema_parse_time(text, out) schema_parse(SCHEMA_TIME, text, 1 ? (out) : (int64_t *)NULL)

/* Returns the nearest of n names by edit distance, or NULL if none is near: for "did you mean". */
const char *schema_nearest(const char *name, const char *const *names, uint32_t n);
