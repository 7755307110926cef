/* The reader of configurations: values, every kind of mistake with its place and what it names, and printing that reads back. */
#include "proto/config/schema.h"

#include <limits.h>

#include "proto/base/clock.h"
#include "tests/support/facts.h"
#include "tests/support/naive.h"
#include "tests/support/tempdir.h"

struct column {
    char *name;
    struct schema_list shape;
};

struct table {
    char *name;
    int64_t max_size, max_bytes;
    int32_t kind;
    double exponent;
    struct schema_list options;
    struct schema_list columns;
};

struct root {
    bool verbose;
    int64_t threads, memory, timeout;
    double ratio;
    char *endpoint, *note;
    struct schema_list plugins;
    struct schema_list tables;
};

static const char *const kinds[] = {"fifo", "lifo", "uniform", "prioritized", NULL};

static const struct schema_row rows[] = {
    {"verbose", SCHEMA_BOOL, offsetof(struct root, verbose), "false", .help = "say more"},
    {"net.threads", SCHEMA_INT, offsetof(struct root, threads), "1", 1, 64, .help = "I/O threads"},
    {"net.endpoint", SCHEMA_STRING, offsetof(struct root, endpoint), "tcp://*:5555", .help = "where to listen"},
    {"memory", SCHEMA_BYTES, offsetof(struct root, memory), "1GiB", 1048576, INFINITY, .help = "limit"},
    {"net.timeout", SCHEMA_TIME, offsetof(struct root, timeout), "60s", 1e9, 3600e9, .help = "expiry"},
    {"ratio", SCHEMA_REAL, offsetof(struct root, ratio), ".inf", 0, INFINITY, .help = "samples | inserts"},
    {"note", SCHEMA_STRING, offsetof(struct root, note), NULL, .help = "free text"},
    {"plugins", SCHEMA_PATHS, offsetof(struct root, plugins), "[]", 0, 8, .help = "shared objects"},
    {"tables", SCHEMA_LIST, offsetof(struct root, tables), NULL, .elem_size = sizeof(struct table), .help = "tables"},
    {"tables[].name", SCHEMA_STRING, offsetof(struct table, name), NULL, 1, 16, .help = "unique"},
    {"tables[].max_size", SCHEMA_INT, offsetof(struct table, max_size), NULL, 1, 1e9, .help = "items"},
    {"tables[].max_bytes", SCHEMA_BYTES, offsetof(struct table, max_bytes), "0", .help = "0: no limit"},
    {"tables[].sampler.kind", SCHEMA_ENUM, offsetof(struct table, kind), "uniform", .choices = kinds, .help = "order"},
    {"tables[].sampler.exponent", SCHEMA_REAL, offsetof(struct table, exponent), "1", -10, 10, .help = "of priority"},
    {"tables[].sampler.options", SCHEMA_OPTIONS, offsetof(struct table, options), NULL, .help = "of the kind"},
    {"tables[].columns", SCHEMA_LIST, offsetof(struct table, columns), NULL, .elem_size = sizeof(struct column),
     .help = "signature"},
    {"tables[].columns[].name", SCHEMA_STRING, offsetof(struct column, name), NULL, 1, 255, .help = "of the column"},
    {"tables[].columns[].shape", SCHEMA_INTS, offsetof(struct column, shape), NULL, 0, 4, .help = "of one step"},
};

static void check(void *ptr, struct schema_report *report)
{
    const struct root *root = ptr;
    const struct table *tables = root->tables.data;
    for (uint32_t i = 0; i < root->tables.count; i++) {
        char path[64];
        snprintf(path, sizeof path, "tables[%u].name", i);
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(tables[i].name, tables[j].name) == 0)
                schema_problem(report, path, "the name '%s' is taken by tables[%u]", tables[i].name, j);
        }
        snprintf(path, sizeof path, "tables[%u].sampler.exponent", i);
        if (tables[i].kind != 3 && tables[i].exponent != 1)
            schema_problem(report, path, "only a prioritized sampler has an exponent");
    }
}

static const struct schema_alias aliases[] = {{"capacity", "max_size"}, {"io", "net.threads"}, {NULL, NULL}};
static const struct schema schema = {"test", rows, sizeof rows / sizeof *rows, sizeof(struct root), check, aliases};

/* Reads a source; returns its problems, "" if there are none. A root that was refused stays as it is. */
static const char *problems_of(const struct schema *of, struct schema_source source, void *out)
{
    struct schema_report *report = schema_report_new();
    source.name = "c.yaml";
    bool good = schema_read(of, &source, out, report);
    const char *text = textf("%s", schema_report_text(report));
    assert_int_equal(good, text[0] == '\0');
    assert_int_equal(good, schema_report_count(report) == 0);
    schema_report_destroy(&report);
    assert_null(report);
    return text;
}

#define PROBLEMS(of, root, ...) problems_of(of, (struct schema_source){__VA_ARGS__}, root)

/* What was read last, until the next is read. */
static struct root root;

static const char *read_root(struct schema_source source)
{
    schema_free(&schema, &root);
    root = (struct root){0};
    return problems_of(&schema, source, &root);
}

#define READ(...) read_root((struct schema_source){__VA_ARGS__})

static void read_good(const char *text)
{
    assert_string_equal(READ(.text = text), "");
}

static void expect_problems(const char *text, const char *problems)
{
    const struct root zero = {0};
    facts_same(READ(.text = text), problems);
    assert_memory_equal(&root, &zero, sizeof root);
}

TEST(defaults)
{
    static const char *const texts[] = {"", "# nothing\n", "---\n", "{}", "net:\ntables:\nplugins: ~\n", "null"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        read_good(texts[i]);
        assert_false(root.verbose);
        assert_int_equal(root.threads, 1);
        assert_int_equal(root.memory, INT64_C(1) << 30);
        assert_int_equal(root.timeout, 60 * NS_PER_S);
        assert_true(isinf(root.ratio));
        assert_string_equal(root.endpoint, "tcp://*:5555");
        assert_string_equal(root.note, "");
        assert_int_equal(root.plugins.count, 0);
        assert_int_equal(root.tables.count, 0);
    }
}

/* As a person writes them. That all members get their values: print_reads_back; units: below. */
TEST(values)
{
    read_good("verbose: yes\n"
              "net: {threads: 4, endpoint: \"ipc:///tmp/a b\"}\n"
              "note: null island\n"
              "plugins: [./a.so, 'b c.so']\n"
              "tables:\n"
              "  - name: replay\n"
              "    max_size: 1_000_000\n"
              "    sampler: {kind: prioritized, options: {seed: 7, mode: \"x: y\"}}\n"
              "  - {name: queue, max_size: 1e3}\n");
    assert_true(root.verbose);
    assert_int_equal(root.threads, 4);
    assert_string_equal(root.endpoint, "ipc:///tmp/a b");
    assert_string_equal(root.note, "null island");
    assert_string_equal(((char **)root.plugins.data)[1], "b c.so");
    const struct table *t = root.tables.data;
    const rp_option *options = t[0].options.data;
    assert_int_equal(t[0].max_size, 1000000);
    assert_string_equal(options[0].value, "7");
    assert_string_equal(options[1].value, "x: y");
    assert_int_equal(t[1].kind, 2); /* its default */
}

TEST(every_mistake_at_once_in_file_order)
{
    expect_problems("verbos: true\n"
                    "net:\n"
                    "  threads: 0\n"
                    "  timeout: 60\n"
                    "  endpoint: [a]\n"
                    "memory: 4XB\n"
                    "memory: 4GiB\n"
                    "ratio: -1\n"
                    "tables:\n"
                    "  - name: a\n"
                    "    max_size: 1.5\n"
                    "    sampler: {kind: prioritised, exponent: 99}\n"
                    "  - max_size: 5\n"
                    "    columns: {x: 1}\n"
                    "plugins: ./a.so\n",
                    "c.yaml:1:1 'verbose'\n"
                    "c.yaml:3:12 net.threads 1 64 0\n"
                    "c.yaml:4:12 net.timeout '60' 60s 500ms\n"
                    "c.yaml:5:13 net.endpoint\n"
                    "c.yaml:6:9 '4XB' 65536 500MB 4GiB\n"
                    "c.yaml:7:1 6\n"
                    "c.yaml:8:8 0 -1\n"
                    "c.yaml:11:15 tables[0].max_size '1.5'\n"
                    "c.yaml:12:21 tables[0].sampler.kind 'prioritised' 'prioritized'\n"
                    "c.yaml:12:44 tables[0].sampler.exponent -10 10 99\n"
                    "c.yaml:13:5 tables[1].name\n"
                    "c.yaml:14:14 tables[1].columns\n"
                    "c.yaml:15:10\n");
}

TEST(bounds_in_human_units)
{
    expect_problems("memory: 1KiB", "c.yaml:1:9 1MiB 1KiB\n");
    expect_problems("net: {timeout: 2h}", "c.yaml:1:16 net.timeout 1s 1h 2h\n");
    expect_problems("plugins: [a,b,c,d,e,f,g,h,i]", "c.yaml:1:10 0 8 9\n");
    expect_problems("tables: [{name: \"\", max_size: 1}]", "c.yaml:1:17 tables[0].name 1 16 0\n");
    expect_problems("tables: [{name: a, max_size: 99999999999999999999}]",
                    "c.yaml:1:30 tables[0].max_size '99999999999999999999'\n");
    expect_problems("memory: -4GiB", "c.yaml:1:9 '-4GiB'\n");
    expect_problems("net: {timeout: soon}", "c.yaml:1:16 net.timeout 'soon' 60s 500ms 1h\n");
    expect_problems("verbose: maybe", "c.yaml:1:10 'maybe'\n");
    expect_problems("ratio: .nan", "c.yaml:1:8 '.nan' 0.6 1e-3\n");
}

TEST(wrong_shapes)
{
    expect_problems("[1, 2]", "c.yaml:1:1\n");
    expect_problems("hello", "c.yaml:1:1\n");
    expect_problems("net: 5", "c.yaml:1:6\n");
    expect_problems("verbose:", "c.yaml:1:9\n");
    expect_problems("verbose: ~", "c.yaml:1:10\n");
    expect_problems("? [a]\n: 1\n", "c.yaml:1:3\n");
    expect_problems("tables: [5]", "c.yaml:1:10 tables[0]\n"
                                   "c.yaml:1:10 tables[0].name\n"
                                   "c.yaml:1:10 tables[0].max_size\n");
    expect_problems("tables: [{name: a, max_size: 1, sampler: {options: {a: 1, a: 2, b: [1], c: }}}]",
                    "c.yaml:1:59 tables[0].sampler.options.a\n"
                    "c.yaml:1:68 tables[0].sampler.options.b\n"
                    "c.yaml:1:76 tables[0].sampler.options.c\n");
    expect_problems("tables: [{name: a, max_size: 1, columns: [{name: x, shape: [1, y, 2.5]}]}]",
                    "c.yaml:1:64 tables[0].columns[0].shape[1] 'y' 1000 1_000 2k 1e6\n"
                    "c.yaml:1:67 tables[0].columns[0].shape[2] '2.5'\n");
    expect_problems("note: \"a\\0b\"", "c.yaml:1:7\n");
}

/* The words of other systems, and keys that stand in another map. */
TEST(words_of_others)
{
    expect_problems("io: 2\ncapacity: 5\ntimeout: 3s\ntables:\n  - {name: a, max_size: 1, capacity: 5, threads: 1}\n",
                    "c.yaml:1:1 'net.threads'\n"
                    "c.yaml:2:1 'tables[].max_size'\n"
                    "c.yaml:3:1 'net.timeout'\n"
                    "c.yaml:5:28 tables[0].capacity 'max_size'\n"
                    "c.yaml:5:41 tables[0].threads 'net.threads'\n");
}

TEST(checks_across_keys)
{
    expect_problems("tables:\n"
                    "  - {name: a, max_size: 1}\n"
                    "  - {name: a, max_size: 1, sampler: {exponent: 2}}\n",
                    "c.yaml:3:12 tables[1].name 'a' tables[0]\n"
                    "c.yaml:3:48 tables[1].sampler.exponent\n");
    /* A key that is wrong already is not complained about twice; others still are. */
    expect_problems("tables:\n"
                    "  - {name: '', max_size: 1}\n"
                    "  - {name: '', max_size: 1, sampler: {exponent: 2}}\n",
                    "c.yaml:2:12 tables[0].name 1 16 0\n"
                    "c.yaml:3:12 tables[1].name 1 16 0\n"
                    "c.yaml:3:49 tables[1].sampler.exponent\n");
}

TEST(problem_finds_the_nearest_parent)
{
    schema_free(&schema, &root);
    struct schema_report *report = schema_report_new();
    assert_true(schema_read_text(&schema, "c.yaml", "net:\n  threads: 2\ntables:\n  - {name: a, max_size: 1}\n", &root,
                                 report));
    schema_problem(report, "tables[0].sampler.kind", "third");
    schema_problem(report, "net.threads", "second");
    schema_problem(report, "memory", "first");
    assert_int_equal(schema_report_count(report), 3);
    assert_string_equal(schema_report_text(report), "c.yaml:1:1: memory: first\n"
                                                    "c.yaml:2:12: net.threads: second\n"
                                                    "c.yaml:4:5: tables[0].sampler.kind: third\n");
    schema_report_destroy(&report);
}

TEST(yaml_that_is_refused)
{
    expect_problems("a: b: c", "c.yaml:1:5 YAML\n");
    expect_problems("net: {threads: 1", "c.yaml:2:1 YAML ',' '}'\n");
    expect_problems("verbose: true\n---\nverbose: true\n", "c.yaml:2:1 YAML\n");
    expect_problems("note: &x hi\nnet: {endpoint: *x}\n", "c.yaml:1:7\nc.yaml:2:17\n");
    expect_problems("&a [*a]", "c.yaml:1:1\nc.yaml:1:5\n");
    expect_problems("verbose: &a yes\nnote: &a !b no\n", "c.yaml:1:10\nc.yaml:2:7\nc.yaml:2:7\n");
    expect_problems("note: !env HOME", "c.yaml:1:7\n");
    char deep[200];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    expect_problems(deep, "c.yaml:1:33 32\n");
    assert_has(READ(.text = "note: \xff\xfe"), "not valid YAML");
}

TEST(many_mistakes_are_bounded)
{
    size_t n = 5000;
    char *text = malloc(n * 16);
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, 16, "k%zu: 1\n", i);
    struct schema_report *report = schema_report_new();
    assert_false(schema_read_text(&schema, "c.yaml", text, &root, report));
    assert_int_equal(schema_report_count(report), n);
    const char *all = schema_report_text(report);
    assert_true(strlen(all) < 20000);
    assert_non_null(strstr(all, "and 4800 more\n"));
    schema_report_destroy(&report);
    free(text);
}

static const char *write_file(const char *name, const void *data, size_t size)
{
    file_write(tempdir_at(name), data, size, 0600);
    return tempdir_at(name);
}

TEST(files, tempdir_enter, tempdir_leave)
{
    static char large[(1u << 20) + 1];
    const char *path = write_file("a", "verbose: on\n", 12);
    assert_string_equal(READ(.file = path), "");
    assert_true(root.verbose);
    unlink(path);
    facts_same(READ(.file = path), textf("%s: cannot be read: No such file or directory\n", path));
    assert_has(READ(.file = "/tmp"), "/tmp: cannot be read: Is a directory\n");
    memset(large, '#', sizeof large);
    assert_has(READ(.file = write_file("a", large, sizeof large)), ": is larger than 1024 KiB\n");
    assert_has(READ(.file = write_file("a", "a\0b: 1\n", 7)), "not valid YAML: control characters are not allowed");
}

/* A plug-in beside the file is meant there, whatever the working folder; others, and those of overrides, stay as written. */
TEST(paths_beside_the_file, tempdir_enter, tempdir_leave)
{
    const char *plugin = write_file("p.so", "", 0);
    const char *text = textf("plugins: [p.so, ./p.so, %s, none.so]\nnote: p.so\n", plugin);
    const char *path = write_file("a.yaml", text, strlen(text));
    char whole[PATH_MAX];
    assert_non_null(realpath(plugin, whole));
    assert_string_equal(READ(.file = path), "");
    char **plugins = root.plugins.data;
    assert_string_equal(plugins[0], whole);
    assert_string_equal(plugins[1], whole);
    assert_string_equal(plugins[2], plugin);
    assert_string_equal(plugins[3], "none.so");
    assert_string_equal(root.note, "p.so");
    assert_string_equal(READ(.file = path, .overrides = (const char *const[]){"plugins=[p.so]", NULL}), "");
    assert_string_equal(*(char **)root.plugins.data, "p.so");
}

/* ------------------------------------------------------------------------------------------------- printing and back */

static char *random_string(struct rng *rng, uint32_t least, uint32_t most)
{
    static const char letters[] = "aZ9-:# \n\t\"\\'{],*&!%~|>?@=\r`"
                                  "\x01"
                                  "\x7f"
                                  "\x1b";
    static const char *const pieces[] = {"\xc3\xa9", "null", "\xc2\x85", "\xe2\x80\xa8",     "- ",
                                         ": ",       " #",   "0x1",      "\xf0\x9f\x98\x80", "\xef\xbb\xbf"};
    uint64_t want = least + rng_below(rng, most - least + 1);
    char *text = calloc(1, most + 1);
    while (strlen(text) < want) {
        char letter[2] = {letters[rng_below(rng, sizeof letters - 1)], '\0'};
        const char *piece = rng_below(rng, 4) ? letter : pieces[rng_below(rng, sizeof pieces / sizeof *pieces)];
        if (strlen(text) + strlen(piece) > most)
            break;
        strcat(text, piece);
    }
    if (strlen(text) < least)
        memset(text, 'x', least);
    return text;
}

static double random_real(struct rng *rng, double low, double high)
{
    switch (rng_below(rng, 4)) {
    case 0:
        return low + rng_unit(rng) * (high - low);
    case 1:
        return fmax(low, round(rng_unit(rng) * high));
    case 2:
        return fmax(low, rng_unit(rng) * 1e-300);
    default:
        return high;
    }
}

static int64_t random_int(struct rng *rng, int64_t low, int64_t high)
{
    int64_t unit[] = {1, 1000, 1024, 1 << 20, NS_PER_MS, NS_PER_S, 60 * NS_PER_S};
    int64_t value = low + (int64_t)rng_below(rng, (uint64_t)(high - low) + 1);
    int64_t rounded = value - value % unit[rng_below(rng, 7)];
    return rounded >= low ? rounded : value;
}

static void random_table(struct rng *rng, struct table *table)
{
    table->name = random_string(rng, 1, 13);
    table->max_size = random_int(rng, 1, 1000000000);
    table->max_bytes = random_int(rng, 0, INT64_MAX / 2);
    table->kind = (int32_t)rng_below(rng, 4);
    table->exponent = table->kind == 3 ? random_real(rng, -10, 10) : 1;
    table->options.count = (uint32_t)rng_below(rng, 3);
    rp_option *options = calloc(3, sizeof *options);
    for (uint32_t i = 0; i < table->options.count; i++) {
        char *name = calloc(1, 32);
        char *head = random_string(rng, 1, 20);
        snprintf(name, 32, "%s%u", head, i);
        free(head);
        options[i] = (rp_option){name, random_string(rng, 0, 40)};
    }
    table->options.data = options;
    table->columns.count = (uint32_t)rng_below(rng, 3);
    struct column *columns = calloc(3, sizeof *columns);
    for (uint32_t i = 0; i < table->columns.count; i++) {
        columns[i].name = random_string(rng, 1, 200);
        columns[i].shape.count = (uint32_t)rng_below(rng, 5);
        int64_t *shape = calloc(5, sizeof *shape);
        for (uint32_t d = 0; d < columns[i].shape.count; d++)
            shape[d] = (int64_t)rng_next(rng);
        columns[i].shape.data = shape;
    }
    table->columns.data = columns;
}

static struct root random_root(struct rng *rng)
{
    struct root out = {
        .verbose = rng_below(rng, 2) == 1,
        .threads = random_int(rng, 1, 64),
        .memory = random_int(rng, 1 << 20, INT64_MAX / 2),
        .timeout = random_int(rng, NS_PER_S, 3600 * NS_PER_S),
        .ratio = rng_below(rng, 8) == 0 ? INFINITY : random_real(rng, 0, 1e9),
        .endpoint = random_string(rng, 0, 60),
        .note = random_string(rng, 0, 900),
    };
    out.plugins.count = (uint32_t)rng_below(rng, 9);
    out.plugins.data = calloc(9, sizeof(char *));
    for (uint32_t i = 0; i < out.plugins.count; i++)
        ((char **)out.plugins.data)[i] = random_string(rng, 0, 20);
    out.tables.count = (uint32_t)rng_below(rng, 4);
    out.tables.data = calloc(4, sizeof(struct table));
    for (uint32_t i = 0; i < out.tables.count; i++)
        random_table(rng, (struct table *)out.tables.data + i);
    return out;
}

static void assert_same_table(const struct table *a, const struct table *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->max_size, b->max_size);
    assert_int_equal(a->max_bytes, b->max_bytes);
    assert_int_equal(a->kind, b->kind);
    assert_true(a->exponent == b->exponent);
    assert_int_equal(a->options.count, b->options.count);
    for (uint32_t i = 0; i < a->options.count; i++) {
        assert_string_equal(((rp_option *)a->options.data)[i].name, ((rp_option *)b->options.data)[i].name);
        assert_string_equal(((rp_option *)a->options.data)[i].value, ((rp_option *)b->options.data)[i].value);
    }
    assert_int_equal(a->columns.count, b->columns.count);
    const struct column *x = a->columns.data, *y = b->columns.data;
    for (uint32_t i = 0; i < a->columns.count; i++) {
        assert_string_equal(x[i].name, y[i].name);
        assert_int_equal(x[i].shape.count, y[i].shape.count);
        if (x[i].shape.count > 0)
            assert_memory_equal(x[i].shape.data, y[i].shape.data, x[i].shape.count * sizeof(int64_t));
    }
}

static void assert_same(const struct root *a, const struct root *b)
{
    assert_int_equal(a->verbose, b->verbose);
    assert_int_equal(a->threads, b->threads);
    assert_int_equal(a->memory, b->memory);
    assert_int_equal(a->timeout, b->timeout);
    assert_true(a->ratio == b->ratio);
    assert_string_equal(a->endpoint, b->endpoint);
    assert_string_equal(a->note, b->note);
    assert_int_equal(a->plugins.count, b->plugins.count);
    for (uint32_t i = 0; i < a->plugins.count; i++)
        assert_string_equal(((char **)a->plugins.data)[i], ((char **)b->plugins.data)[i]);
    assert_int_equal(a->tables.count, b->tables.count);
    for (uint32_t i = 0; i < a->tables.count; i++)
        assert_same_table((struct table *)a->tables.data + i, (struct table *)b->tables.data + i);
}

TEST(print_reads_back)
{
    struct rng rng = naive_rng(__func__);
    struct schema silent = schema;
    silent.check = NULL;
    for (int round = 0; round < 500; round++) {
        struct root first = random_root(&rng), back = {0};
        const char *text = PRINTED(schema_print(&silent, &first, printing)), *problems;
        if ((problems = PROBLEMS(&silent, &back, .text = text))[0])
            fail_msg("%s\nin\n%s", problems, text);
        assert_same(&first, &back);
        schema_free(&silent, &first);
        schema_free(&silent, &back);
    }
}

TEST(print_looks_like_this)
{
    read_good("tables: [{name: a, max_size: 5}, {name: \"b b\", max_size: 6, max_bytes: 1MiB}]");
    const char *text = PRINTED(schema_print(&schema, &root, printing));
    /* Help and bounds stand once, at the first element of a list. */
    assert_has(text,
               "  # I/O threads (between 1 and 64)\n  threads: 1\n  # where to listen\n  endpoint: \"tcp://*:5555\"\n");
    HAS(text, "# shared objects (between 0 and 8)\nplugins: []\n",
        "      # order (fifo, lifo, uniform, prioritized)\n      kind: uniform\n",
        "    columns: []\n  - name: \"b b\"\n    max_size: 6\n    max_bytes: 1MiB\n    sampler:\n");
    text = PRINTED(schema_print_reference(&schema, printing));
    HAS(text, "| `net.timeout` | time | `60s` | between 1s and 1h | expiry |\n",
        "| `ratio` | number | `.inf` | at least 0 | samples \\| inserts |\n",
        "| `tables[].name` | string | required | between 1 and 16 | unique |\n",
        "| `tables[].sampler.kind` | choice | `uniform` | `fifo`, `lifo`, ");
}

/* ------------------------------------------------------------------------------------------- sections and overrides */

static const char run_text[] = "agent: {batch: 3}\n"
                               "broker:\n"
                               "  net: {threads: 3}\n"
                               "  tables:\n"
                               "    - {name: a, max_size: 5}\n"
                               "    - {name: b, max_size: 6}\n";

static void expect_source(const char *text, const char *section, const char *const *overrides, const char *problems)
{
    facts_same(READ(.text = text, .section = section, .overrides = overrides), problems);
}

TEST(section)
{
    expect_source(run_text, "broker", NULL, "");
    assert_int_equal(root.threads, 3);
    assert_int_equal(root.tables.count, 2);
    expect_source(run_text, "brokers", NULL, "c.yaml 'brokers'\n");
    expect_source("[1]", "broker", NULL, "c.yaml 'broker'\n");
    expect_source("", "broker", NULL, "c.yaml 'broker'\n");
    expect_source("broker:\n", "broker", NULL, "");
    expect_source("x: 1\nbroker: 7\n", "broker", NULL, "c.yaml:2:9\n");
    /* Places and paths are those of the whole file, for the reader's mistakes and for the check's. */
    expect_source("x: 1\n"
                  "broker:\n"
                  "  tables:\n"
                  "    - {name: a, max_siz: 1}\n"
                  "    - {name: b, max_size: 1, sampler: {exponent: 2}}\n",
                  "broker", NULL,
                  "c.yaml:4:7 broker.tables[0].max_size\n"
                  "c.yaml:4:17 broker.tables[0].max_siz 'max_size'\n"
                  "c.yaml:5:50 broker.tables[1].sampler.exponent\n");
}

TEST(overrides)
{
    static const char *const good[] = {"broker.net.threads=7",
                                       "broker.tables[1].max_size=2k",
                                       "broker.tables[2]={name: c, max_size: 9}",
                                       "broker.tables[2].columns[0].shape=[1, 2]",
                                       "broker.tables[2].columns[0].name=x",
                                       "broker.tables[0].sampler.options.depth=3",
                                       "broker.net.endpoint=tcp://*:1",
                                       "broker.plugins=[a, b]",
                                       "broker.plugins[1]=c",
                                       "broker.note=",
                                       "broker.verbose=true",
                                       "other.section=1",
                                       NULL};
    expect_source(run_text, "broker", good, "");
    struct table *tables = root.tables.data;
    assert_int_equal(root.threads, 7);
    assert_int_equal(root.tables.count, 3);
    assert_int_equal(tables[0].max_size, 5);
    assert_int_equal(tables[1].max_size, 2000);
    assert_string_equal(tables[2].name, "c");
    struct column *columns = tables[2].columns.data;
    assert_string_equal(columns[0].name, "x");
    assert_int_equal(columns[0].shape.count, 2);
    assert_string_equal(((rp_option *)tables[0].options.data)[0].value, "3");
    assert_string_equal(root.endpoint, "tcp://*:1");
    assert_string_equal(((char **)root.plugins.data)[1], "c");
    assert_string_equal(root.note, "");
    assert_true(root.verbose);
    /* Documents with nothing in them take overrides too. */
    static const char *const texts[] = {"", "# nothing\n", "null", "{}", "net:\n"};
    static const char *const one[] = {"net.threads=4", NULL};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        expect_source(texts[i], NULL, one, "");
        assert_int_equal(root.threads, 4);
    }
}

TEST(wrong_overrides)
{
    static const struct {
        const char *override, *problem;
    } cases[] = {
        {"net.threads", "override 'net.threads': has no '=': write KEY=VALUE, such as seed=7\n"},
        {"net.threads=x",
         "override 'net.threads=x': net.threads: 'x' is not a whole number such as 1000, 1_000, 2k or 1e6\n"},
        {"net.threads=99", "override 'net.threads=99': net.threads: must be between 1 and 64, not 99\n"},
        {"net.thread=9", "override 'net.thread=9': net.thread: unknown key (did you mean 'threads'?)\n"},
        {"nett.threads=9", "override 'nett.threads=9': nett: unknown key (did you mean 'net'?)\n"},
        {"net.threads=[1]", "override 'net.threads=[1]': net.threads: must be a single value, not a list\n"},
        {"net.threads=[1", "override 'net.threads=[1':2:1: not valid YAML: while parsing a flow sequence did not find "
                           "expected ',' or ']'\n"},
        {"net.threads=!!int 3", "override 'net.threads=!!int 3':1:1: tags (tag:yaml.org,2002:int) are not supported\n"},
        {"net.threads=~", "override 'net.threads=~': net.threads: has no value\n"},
        {"net.threads=# 3", "override 'net.threads=# 3': net.threads: has no value\n"},
        {"net.threads.x=3", "override 'net.threads.x=3': 'net.threads' is a single value, not a map of keys\n"},
        {"net[0]=3", "override 'net[0]=3': 'net' is a map, not a list\n"},
        {"tables[3].name=3", "override 'tables[3].name=3': 'tables' has no element 3: the next one is 1\n"},
        {"tables.0.name=3", "override 'tables.0.name=3': 'tables' is a list, not a map of keys: write "
                            "[0] behind it for its first element\n"},
        {"tables[0].sampler.exponent=3", "override 'tables[0].sampler.exponent=3': tables[0].sampler.exponent: only a "
                                         "prioritized sampler has an exponent\n"},
        {"plugins=3", "override 'plugins=3': plugins: must be a list, not a single value\n"},
        {"=3", "override '=3': '' is not a path such as tables[0].max_size\n"},
        {"net..threads=3", "override 'net..threads=3': 'net..threads' is not a path such as tables[0].max_size\n"},
        {"net.\xff=3", "override 'net.\xff=3': 'net.\xff' is not a path such as tables[0].max_size\n"},
        {"tables[x]=3", "override 'tables[x]=3': 'tables[x]' is not a path such as tables[0].max_size\n"},
        {"tables[0=3", "override 'tables[0=3': 'tables[0' is not a path such as tables[0].max_size\n"},
        {"[0]=3", "override '[0]=3': '[0]' is not a path such as tables[0].max_size\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const list[] = {"verbose=true", cases[i].override, NULL};
        expect_source("net: {threads: 2}\ntables: [{name: a, max_size: 1}]\n", NULL, list, cases[i].problem);
    }
    /* Those of the file come first, then each override's in its turn. */
    const char *const two[] = {"ratio=x", "memory=1", NULL};
    expect_source("net: {threads: 99}\n", NULL, two,
                  "c.yaml:1:16 net.threads 1 64 99\n"
                  "'ratio=x' 'x' 0.6 1e-3\n"
                  "'memory=1' 1MiB 1\n");
    const char *const any[] = {"net.threads=3", NULL};
    expect_source("[1]", NULL, any, "c.yaml:1:1\n");
}

/* ------------------------------------------------------------------------------------------------------------- units */

TEST(units)
{
    int64_t v = -7;
    double r = -7;
    static const struct {
        const char *text;
        int64_t value;
    } ints[] = {{"0", 0},
                {"-5", -5},
                {"+5", 5},
                {"1_000", 1000},
                {"1e6", 1000000},
                {"2k", 2000},
                {"3M", 3000000},
                {"1.5k", 1500},
                {"25e-1M", 2500000},
                {"2 k", 2000},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}},
      bytes[] = {{"65536", 65536},
                 {"4GiB", INT64_C(4) << 30},
                 {"500MB", 500000000},
                 {"1.5KiB", 1536},
                 {"0.1KiB", 102},
                 {"1kb", 1000},
                 {"10 MiB", 10 << 20},
                 {"0", 0},
                 {"7B", 7}},
      times[] = {{"60s", 60 * NS_PER_S}, {"5ms", 5 * NS_PER_MS},   {"1h", 3600 * NS_PER_S},    {"0s", 0},
                 {"0.5us", 500},         {"2min", 120 * NS_PER_S}, {"2m", 120 * NS_PER_S},     {"1d", 86400 * NS_PER_S},
                 {"3\xc2\xb5s", 3000},   {"1e3ms", NS_PER_S},      {"250 ms", 250 * NS_PER_MS}};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        assert_true(schema_parse_int(ints[i].text, &v));
        assert_true(v == ints[i].value);
    }
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        assert_true(schema_parse_bytes(bytes[i].text, &v));
        assert_true(v == bytes[i].value);
    }
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        assert_true(schema_parse_time(times[i].text, &v));
        assert_true(v == times[i].value);
    }
    static const char *const bad[] = {"",      " ",      "-",   "k",  "1__0", "_1",  "1_",
                                      "1x",    "0x10",   "1.5", "1e", "--1",  "1 2", "9223372036854775808",
                                      "1e400", "1e-400", "."};
    v = 42;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(schema_parse_int(bad[i], &v));
    static const char *const bad_bytes[] = {"", "-1", "4 Gi B", "1e30", "8388608TiB", "GiB", "5s"};
    for (size_t i = 0; i < sizeof bad_bytes / sizeof *bad_bytes; i++)
        assert_false(schema_parse_bytes(bad_bytes[i], &v));
    static const char *const bad_times[] = {"", "60", "0", "-1s", "1M", "1S", "1e20s", "s", "1s1"};
    for (size_t i = 0; i < sizeof bad_times / sizeof *bad_times; i++)
        assert_false(schema_parse_time(bad_times[i], &v));
    assert_int_equal(v, 42);
    assert_true(schema_parse_real("-1.25e2", &r) && r == -125.0);
    assert_true(schema_parse_real("-.inf", &r) && r == -INFINITY);
    assert_true(schema_parse_real("0.1000000000000000055511151231257827", &r) && r == 0.1);
    assert_true(schema_parse_real("2k", &r) && r == 2000.0);
    r = 42;
    assert_false(schema_parse_real("nan", &r));
    assert_false(schema_parse_real("1e999", &r));
    assert_false(schema_parse_real("1,5", &r));
    assert_true(r == 42);
}

TEST(nearest)
{
    static const char *const names[] = {"max_size", "max_bytes", "sampler", "remover", "name", "ip"};
    assert_string_equal(schema_nearest("maxsize", names, 6), "max_size");
    assert_string_equal(schema_nearest("MAX-SIZE", names, 6), "max_size");
    assert_string_equal(schema_nearest("smapler", names, 6), "sampler");
    assert_string_equal(schema_nearest("nmae", names, 6), "name");
    assert_null(schema_nearest("priority", names, 6));
    assert_null(schema_nearest("", names, 6));
    assert_null(schema_nearest("xy", names, 6));
    assert_null(schema_nearest("a_name_that_is_much_longer_than_any_key_could_be_here", names, 6));
}

/* ---- a number that may be a word */

struct worded {
    int64_t count, pause;
};

static const char *const automatic[] = {"auto", NULL};
static const char *const pauses[] = {"off", "never", NULL};

static const struct schema_row worded_rows[] = {
    {"count", SCHEMA_INT, offsetof(struct worded, count), "auto", 0, 8, automatic, .help = "how many"},
    {"pause", SCHEMA_TIME, offsetof(struct worded, pause), "3s", 0, 9e9, pauses, .help = "how long"},
};

static const struct schema worded = {"worded", worded_rows, 2, sizeof(struct worded), NULL, NULL};

static void expect_words(const char *text, int64_t count, int64_t pause)
{
    struct worded out = {0};
    assert_string_equal(PROBLEMS(&worded, &out, .text = text), "");
    assert_int_equal(out.count, count);
    assert_int_equal(out.pause, pause);
}

static void expect_no_words(const char *text, const char *problems)
{
    facts_same(PROBLEMS(&worded, &(struct worded){0}, .text = text), problems);
}

TEST(words_for_numbers)
{
    expect_words("", -1, 3 * NS_PER_S);
    expect_words("{count: auto, pause: off}", -1, -1);
    expect_words("{count: 'auto', pause: never}", -1, -2);
    expect_words("{count: 0, pause: 0s}", 0, 0);
    expect_words("{count: 8, pause: 9s}", 8, 9 * NS_PER_S);
    expect_no_words("count: -1\npause: 10s\n",
                    "c.yaml:1:8: count: must be auto, or between 0 and 8, not -1\n"
                    "c.yaml:2:8: pause: must be off, never, or between 0s and 9s, not 10s\n");
    expect_no_words("count: 9", "c.yaml:1:8: count: must be auto, or between 0 and 8, not 9\n");
    expect_no_words("count: atuo\npause: much\n",
                    "c.yaml:1:8: count: 'atuo' is not auto, or a whole number (did you mean 'auto'?)\n"
                    "c.yaml:2:8: pause: 'much' is not off, never, or a time\n");
    expect_no_words("count: Auto", "c.yaml:1:8: count: 'Auto' is not auto, or a whole number (did you mean 'auto'?)\n");
    expect_no_words("count: 1.5", "c.yaml:1:8: count: '1.5' is not a whole number\n");
}

struct counted {
    struct schema_list shards;
};

/* A number of empty strings, a list, or a word for none. */
TEST(a_count_may_be_a_word)
{
    static const struct schema_row count_rows[] = {
        {"shards", SCHEMA_COUNT, offsetof(struct counted, shards), "1", 1, 8, automatic, .help = "how many, or which"}};
    static const struct schema counted = {"counted", count_rows, 1, sizeof(struct counted), NULL, NULL};
    static const struct {
        const char *text, *printed;
        uint32_t count;
    } cases[] = {
        {"", "1", 1}, {"shards: auto", "auto", 0}, {"shards: 3", "3", 3}, {"shards: [a, b]", "[\"a\", \"b\"]", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct counted out = {0};
        assert_string_equal(PROBLEMS(&counted, &out, .text = cases[i].text), "");
        assert_int_equal(out.shards.count, cases[i].count);
        facts_same(PRINTED(schema_print(&counted, &out, printing)),
                   textf("# how many, or which (auto, or between 1 and 8)\nshards: %s\n", cases[i].printed));
        schema_free(&counted, &out);
    }
}

TEST(words_are_printed)
{
    assert_string_equal(PRINTED(schema_print(&worded, &(struct worded){-1, -2}, printing)),
                        "# how many (auto, or between 0 and 8)\n"
                        "count: auto\n"
                        "# how long (off, never, or between 0s and 9s)\n"
                        "pause: never\n");
    assert_string_equal(PRINTED(schema_print_reference(&worded, printing)),
                        "| key | type | default | allowed | meaning |\n"
                        "|---|---|---|---|---|\n"
                        "| `count` | integer | `auto` | auto, or between 0 and 8 | how many |\n"
                        "| `pause` | time | `3s` | off, never, or between 0s and 9s | how long |\n");
}

/* ---- kinds with options, and maps of lists */

struct kinded {
    struct schema_kind order;
    struct schema_list actions, fields;
    double speed;
    bool loud;
};

static const struct schema_row kinded_rows[] = {
    {"order", SCHEMA_KIND, offsetof(struct kinded, order), "fifo", .help = "which first"},
    {"actions", SCHEMA_KINDS, offsetof(struct kinded, actions), NULL, 0, 3, .help = "what to do"},
    {"fields", SCHEMA_TUPLES, offsetof(struct kinded, fields), NULL, 0, 4, .help = "what there is"},
};
static const struct schema kinded = {"kinded", kinded_rows, 3, sizeof(struct kinded), NULL, NULL};
static const struct schema_row option_rows[] = {
    {"speed", SCHEMA_REAL, offsetof(struct kinded, speed), "2", 0, 10, .help = NULL},
    {"loud", SCHEMA_BOOL, offsetof(struct kinded, loud), "true", .help = NULL},
};
static const struct schema_alias option_aliases[] = {{"velocity", "speed"}, {NULL, NULL}};
static const struct schema options_of_order = {.rows = option_rows, .n_rows = 2, .aliases = option_aliases};

/* Reads the text, and prints it without comments. */
static const char *printed_again(const char *text)
{
    struct kinded out = {0};
    assert_string_equal(PROBLEMS(&kinded, &out, .text = text), "");
    const char *lines = "";
    char *rest;
    for (char *line = strtok_r(PRINTED(schema_print(&kinded, &out, printing)), "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        if (line[0] != '#')
            lines = textf("%s%s\n", lines, line);
    schema_free(&kinded, &out);
    return lines;
}

TEST(kinds_are_printed_as_they_are_read)
{
    static const struct {
        const char *text, *printed;
    } cases[] = {
        {"", "order: fifo\nactions: []\nfields: {}\n"},
        {"order: lifo\nactions: [a, {kind: b}]", "order: lifo\nactions: [a, b]\nfields: {}\n"},
        {"order: {speed: 3}", "order: {kind: fifo, speed: \"3\"}\nactions: []\nfields: {}\n"},
        {"actions: [{speed: 1, kind: a, loud: no}]",
         "order: fifo\nactions: [{kind: a, speed: \"1\", loud: \"no\"}]\nfields: {}\n"},
        {"fields: {x: [float32, 0, 4], y: uint8, z: []}",
         "order: fifo\nactions: []\nfields: {x: \"[float32, 0, 4]\", y: \"uint8\", z: \"[]\"}\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *once = printed_again(cases[i].text);
        assert_string_equal(once, cases[i].printed);
        assert_string_equal(printed_again(once), once);
    }
}

TEST(mistakes_in_kinds)
{
    static const char *const wrong[][2] = {
        {"order: [a]", "c.yaml:1:8: order: must be a word, or a map with a kind, not a list\n"},
        {"order: {kind: [a]}", "c.yaml:1:15: order.kind: must be a single value, not a list\n"},
        {"order: {kind: a, x: 1, x: 2}", "c.yaml:1:24: order.x: is given twice\n"},
        {"actions: a", "c.yaml:1:10: actions: must be a list, not a single value\n"},
        {"actions: [a, b, c, d]", "c.yaml:1:10: actions: must have between 0 and 3 elements, not 4\n"},
        {"fields: [x]", "c.yaml:1:9: fields: must be a map of options, not a list\n"},
        {"fields: {x: [[1]]}", "c.yaml:1:14: fields.x: must be a single value, not a list\n"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        facts_same(PROBLEMS(&kinded, &(struct kinded){0}, .text = wrong[i][0]), wrong[i][1]);
}

TEST(options_are_read_by_rows)
{
    struct kinded out = {0};
    struct schema_report *report = schema_report_new();
    assert_true(
        schema_read_text(&kinded, "c.yaml", "order: {kind: a, speed: 12,\n  sped: 1,\n  velocity: 1}", &out, report));
    schema_read_options(&options_of_order, &out.order.options, "order", &out, report);
    assert_true(out.speed == 2 && out.loud);
    facts_same(schema_report_text(report), "c.yaml:1:25: order.speed: must be between 0 and 10, not 12\n"
                                           "c.yaml:2:9: order.sped: unknown key (did you mean 'speed'?)\n"
                                           "c.yaml:3:13: order.velocity: unknown key (did you mean 'speed'?)\n");
    schema_report_destroy(&report);
    schema_free(&kinded, &out);
}

TEST(elements_of_a_text)
{
    static const char *const texts[] = {"[a, bc]", "a bc", "[a,bc", "[ a , bc ] "};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *at = texts[i];
        char word[3];
        assert_true(schema_next(&at, word, sizeof word));
        assert_string_equal(word, "a");
        assert_true(schema_next(&at, word, sizeof word));
        assert_string_equal(word, "bc");
        assert_false(schema_next(&at, word, sizeof word));
    }
    const char *at = "abc";
    char word[3];
    assert_false(schema_next(&at, word, sizeof word));
}
