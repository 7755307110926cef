/* Any bytes as a configuration: read as text, and what was accepted must print and read back. The first byte chooses
 * the schema: a small one with every type, or the broker's own. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "broker/config/config.h"
#include "tests/fuzz/target.h"

struct part {
    char *name;
    struct schema_list shape, options;
};

struct root {
    bool flag;
    int64_t whole, bytes, time;
    double real;
    char *text;
    int32_t choice;
    struct schema_list words, names, parts;
};

static const char *const choices[] = {"fifo", "lifo", "uniform", NULL};

static const struct schema_row rows[] = {
    {"flag", SCHEMA_BOOL, offsetof(struct root, flag), "false", .help = ""},
    {"a.whole", SCHEMA_INT, offsetof(struct root, whole), "1", .help = ""},
    {"a.bytes", SCHEMA_BYTES, offsetof(struct root, bytes), "1GiB", .help = ""},
    {"a.time", SCHEMA_TIME, offsetof(struct root, time), "60s", .help = ""},
    {"a.real", SCHEMA_REAL, offsetof(struct root, real), "1", -INFINITY, INFINITY, .help = ""},
    {"text", SCHEMA_STRING, offsetof(struct root, text), "hello", .help = ""},
    {"choice", SCHEMA_ENUM, offsetof(struct root, choice), "fifo", .choices = choices, .help = ""},
    {"words", SCHEMA_STRINGS, offsetof(struct root, words), "[a, b]", .help = ""},
    {"names", SCHEMA_COUNT, offsetof(struct root, names), "1", .help = ""},
    {"parts", SCHEMA_LIST, offsetof(struct root, parts), NULL, .elem_size = sizeof(struct part), .help = ""},
    {"parts[].name", SCHEMA_STRING, offsetof(struct part, name), NULL, 1, 64, .help = ""},
    {"parts[].shape", SCHEMA_INTS, offsetof(struct part, shape), NULL, .help = ""},
    {"parts[].options", SCHEMA_OPTIONS, offsetof(struct part, options), NULL, .help = ""},
};

static const struct schema small_schema = {"small", rows, sizeof rows / sizeof *rows, sizeof(struct root), NULL, NULL};

static char *print(const struct schema *schema, const void *root)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    CHECK(out);
    schema_print(schema, root, out);
    fclose(out);
    return text;
}

static void run(const struct schema *schema, const char *text)
{
    void *root = calloc(1, schema->root_size), *back = calloc(1, schema->root_size);
    struct schema_report *report = schema_report_new();
    CHECK(root && back && report);
    if (schema_read_text(schema, "fuzz", text, root, report)) {
        char *first = print(schema, root);
        if (!schema_read_text(schema, "printed", first, back, report)) {
            fprintf(stderr, "%s\nin\n%s", schema_report_text(report), first);
            abort();
        }
        char *second = print(schema, back);
        CHECK(strcmp(first, second) == 0);
        free(first);
        free(second);
        schema_free(schema, back);
    } else {
        CHECK(schema_report_count(report) > 0 && schema_report_text(report)[0]);
    }
    schema_free(schema, root);
    schema_report_destroy(&report);
    free(root);
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    char *text = malloc(size);
    CHECK(text);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    run(data[0] == 'B' ? &broker_schema : &small_schema, text);
    free(text);
    return 0;
}
