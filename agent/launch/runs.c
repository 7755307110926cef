#include "agent/launch/runs.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <fts.h>
#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/process/status.h"
#include "agent/launch/report.h"
#include "agent/launch/series.h"
#include "agent/view/page.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"

#define MOST_RUNS 100000u

/* ---- a folder and everything in it ---- */

/* True for the files of a broker (docs/OPERATE.md). */
static bool is_table(const char *file)
{
    return fnmatch("segment-*.replay", file, 0) == 0 || fnmatch("checkpoint-*.replay*", file, 0) == 0;
}

enum removal { REMOVE_NOTHING, REMOVE_TABLES, REMOVE_ALL };

/* Adds up the bytes of a folder, and removes its contents; in the topmost folder the files that mark a run stay. */
static bool walk(const char *folder, enum removal what, struct run_summary *sum)
{
    char *const paths[] = {(char *)(uintptr_t)folder, NULL};
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    bool ok = tree != NULL;
    for (FTSENT *at; tree && (at = fts_read(tree));) {
        bool dir = at->fts_info == FTS_DP, table = at->fts_info == FTS_F && is_table(at->fts_name);
        if (at->fts_level == 0 || at->fts_info == FTS_D)
            continue; /* a folder counts when all in it is done */
        ok &= at->fts_info != FTS_DNR && at->fts_info != FTS_ERR && at->fts_info != FTS_NS;
        uint64_t bytes = at->fts_info == FTS_NS ? 0 : (uint64_t)at->fts_statp->st_blocks * 512u;
        sum->bytes += bytes;
        sum->tables += table ? bytes : 0;
        if (what == REMOVE_TABLES
                ? table
                : what == REMOVE_ALL && !(at->fts_level == 1 && (strcmp(at->fts_name, FOLDER_STATE) == 0 ||
                                                                 strcmp(at->fts_name, FOLDER_LOCK) == 0)))
            ok &= (dir ? rmdir(at->fts_accpath) : unlink(at->fts_accpath)) == 0;
    }
    if (tree)
        fts_close(tree);
    return ok;
}

rp_status runs_remove(const char *folder, bool tables, rp_error *err)
{
    int lock = -1;
    struct run_summary sum = {0};
    char path[FOLDER_SIZE + 32];
    RP_TRY(run_folder_lock(folder, &lock, err));
    bool ok = walk(folder, tables ? REMOVE_TABLES : REMOVE_ALL, &sum);
    if (ok && !tables) /* the lock goes last: as long as the run exists, no other launcher can begin to work on it */
        ok = unlink(run_folder_path(path, sizeof path, folder, FOLDER_STATE)) == 0 &&
             unlink(run_folder_path(path, sizeof path, folder, FOLDER_LOCK)) == 0 && rmdir(folder) == 0;
    int error = errno;
    close(lock);
    return ok ? RP_OK
              : err_set(err, RP_IO, "%s'%s' cannot be removed: %s", tables ? "the tables in " : "", folder,
                        strerror(error));
}

/* ---- one run ---- */

#define SUMMARY(title, member) JSON_ROW_AS(title, struct run_summary, member, NAN)

/* Of api/runs; from FIGURES on, report.json and for the most part status.json have the same names. */
static const struct json_row summary_rows[] = {
    SUMMARY("name", name),
    SUMMARY("folder", folder),
    SUMMARY("seed", seed),
    SUMMARY("bytes", bytes),
    SUMMARY("tables_bytes", tables),
    SUMMARY("result", result),
    SUMMARY("actors", actors),
    SUMMARY("learners", learners),
    SUMMARY("best", best),
    SUMMARY("steps", steps),
    SUMMARY("learner_steps", learner_steps),
    SUMMARY("elapsed_s", seconds),
    SUMMARY("final_value", final_value),
    SUMMARY("final_weights", weights),
    SUMMARY("inserts", inserts), /* what the first stretch achieved */
    SUMMARY("samples", samples),
    {0},
};
#define FIGURES 8
#define RATES 14
/* What a status calls otherwise. */
static const struct json_row status_rows[] = {
    SUMMARY("actors_wanted", actors),
    SUMMARY("learners_wanted", learners),
    SUMMARY("inserts_rate", inserts),
    SUMMARY("samples_rate", samples),
    {0},
};

/* Reads the status of a run, or its report, which begins as its last status. False: there is none. */
static bool take_status(const char *file, struct run_summary *out)
{
    char *text = run_folder_read(out->folder, file);
    json_object *root = text ? json_tokener_parse(text) : NULL, *stretches = NULL, *achieved = NULL;
    enum phase phase = phase_find(json_map_text(root, "phase"));
    if (phase < PHASES) {
        json_map_read(root, summary_rows + FIGURES, out);
        json_map_read(root, status_rows, out);
        if (isnan(out->final_value))
            out->final_value = json_map_number(root, "value");
        if (isnan(out->final_value))
            out->final_value = json_map_number(root, "actor_value");
        if (!out->active && phase >= PHASE_DONE) /* otherwise it still goes on, or was lost */
            snprintf(out->result, sizeof out->result, "%s", phase_name(phase));
        if (json_object_object_get_ex(root, "stretches", &stretches) &&
            json_object_is_type(stretches, json_type_array) &&
            json_object_object_get_ex(json_object_array_get_idx(stretches, 0), "achieved", &achieved))
            json_map_read(achieved, summary_rows + RATES, out);
    }
    json_object_put(root);
    free(text);
    return phase < PHASES;
}

/* config.yaml is printed by the launcher: each key is alone on its line. */
static void take_seed(struct run_summary *out)
{
    char *text = run_folder_read(out->folder, FOLDER_CONFIG);
    const char *found = text ? strstr(text, "\nseed: ") : NULL;
    if (found)
        snprintf(out->seed, sizeof out->seed, "%.*s", (int)strcspn(found + 7, " \r\n#"), found + 7);
    free(text);
}

/* When a file was last written; 0: there is none. */
static int64_t written_ns(const char *folder, const char *file)
{
    char path[FOLDER_SIZE + 32];
    struct stat info;
    bool there = stat(run_folder_path(path, sizeof path, folder, file), &info) == 0;
    return there ? (int64_t)info.st_mtim.tv_sec * NS_PER_S + info.st_mtim.tv_nsec : 0;
}

bool runs_read(const char *folder, struct run_summary *out)
{
    *out = (struct run_summary){.final_value = NAN, .best = NAN, .inserts = NAN, .samples = NAN, .seconds = NAN};
    if (strlen(folder) >= FOLDER_SIZE - 64 || !(out->changed_ns = written_ns(folder, FOLDER_STATE)))
        return false;
    snprintf(out->folder, sizeof out->folder, "%s", folder);
    const char *slash = strrchr(folder, '/');
    snprintf(out->name, sizeof out->name, "%.127s", slash && slash[1] ? slash + 1 : folder);
    out->active = run_folder_locked(folder);
    /* The report of an earlier leg says nothing about a run that was lost or still goes on. */
    bool told = written_ns(folder, "report.json") >= written_ns(folder, FOLDER_STATUS);
    snprintf(out->result, sizeof out->result, "%s", out->active ? "running" : "lost");
    if (out->active || !told || !take_status("report.json", out))
        take_status(FOLDER_STATUS, out);
    take_seed(out);
    walk(folder, REMOVE_NOTHING, out);
    return true;
}

void runs_json(struct json *out, const struct run_summary *runs, uint32_t n)
{
    json_open(out, '[');
    for (uint32_t i = 0; i < n; i++) {
        json_open(out, '{');
        json_map_write(out, summary_rows, &runs[i]);
        json_close(out, '}');
    }
    json_close(out, ']');
}

/* ---- all of them ---- */

static int newest_first(const void *a, const void *b)
{
    const struct run_summary *x = a, *y = b;
    return x->changed_ns != y->changed_ns ? (x->changed_ns < y->changed_ns ? 1 : -1) : strcmp(y->name, x->name);
}

void runs_add(const char *runs, struct run_summary **list, uint32_t *n)
{
    uint32_t capacity = *n;
    DIR *dir = opendir(runs);
    for (const struct dirent *entry; dir && *n < MOST_RUNS && (entry = readdir(dir));) {
        char path[FOLDER_SIZE];
        struct stat st;
        if (entry->d_name[0] == '.' ||
            (size_t)snprintf(path, sizeof path, "%s/%s", runs, entry->d_name) >= sizeof path - 64 ||
            lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) /* a link is another name for a run */
            continue;
        if (*n == capacity)
            *list = need_resize(*list, capacity = capacity ? 2 * capacity : 64, sizeof **list);
        *n += runs_read(path, &(*list)[*n]);
    }
    if (dir)
        closedir(dir);
    if (*n > 1)
        qsort(*list, *n, sizeof **list, newest_first);
}

struct run_summary *runs_list(const char *runs, uint32_t *n)
{
    struct run_summary *list = NULL;
    *n = 0;
    runs_add(runs, &list, n);
    return list;
}

/* Compares runs side by side. */

#define MOST_LEVELS 16
#define MOST_DIFFERENCES 60u

/* ---- configurations ---- */

struct runs_level {
    size_t indent;
    char key[64];
    int items; /* in a list: how many elements have begun */
};

static void add_path(struct text *out, const struct runs_level *levels, int n)
{
    for (int i = 0; i < n; i++) {
        text_add(out, "%s%s", i > 0 ? "." : "", levels[i].key);
        if (levels[i].items > 0)
            text_add(out, "[%d]", levels[i].items - 1);
    }
}

/* One line of YAML as the launcher prints it: "key: value", "key:", "- key: value". */
static void flatten_line(struct text *out, struct runs_level *levels, int *n, const char *line, size_t size)
{
    size_t indent = strspn(line, " ");
    if (indent >= size || line[indent] == '#')
        return;
    bool item = size - indent > 2 && line[indent] == '-' && line[indent + 1] == ' ';
    while (*n > 0 && levels[*n - 1].indent >= indent + (item ? 1 : 0))
        (*n)--;
    if (item) {
        if (*n > 0)
            levels[*n - 1].items++;
        indent += 2 + strspn(line + indent + 2, " ");
    }
    const char *key = line + indent, *colon = memchr(key, ':', size - indent);
    if (!colon || *n == MOST_LEVELS)
        return;
    levels[*n] = (struct runs_level){.indent = indent};
    snprintf(levels[*n].key, sizeof levels[*n].key, "%.*s", (int)(colon - key), key);
    (*n)++;
    const char *value = colon + 1 + strspn(colon + 1, " ");
    if (value >= line + size)
        return;
    add_path(out, levels, *n);
    text_add(out, ": %.*s\n", (int)(line + size - value), value);
}

char *runs_flatten_config(const char *text)
{
    struct runs_level levels[MOST_LEVELS];
    struct text out = {0};
    int n = 0;
    for (const char *line = text ? text : ""; *line;) {
        size_t size = strcspn(line, "\n");
        flatten_line(&out, levels, &n, line, size);
        line += size + (line[size] == '\n');
    }
    char *flat = need_text(text_get(&out));
    text_fini(&out);
    return flat;
}

/* The value of a key, or "-". */
static void value_of(const char *flat, const char *key, size_t length, char *out, size_t size)
{
    snprintf(out, size, "-");
    for (const char *line = flat ? flat : ""; *line; line += strcspn(line, "\n") + 1)
        if (strncmp(line, key, length) == 0 && line[length] == ':') {
            size_t bytes = strcspn(line + length + 2, "\n");
            snprintf(out, size, "%.*s", (int)bytes, line + length + 2);
            return;
        }
}

static bool seen_before(char *const *flat, uint32_t upto, const char *key, size_t length)
{
    char value[8];
    for (uint32_t i = 0; i < upto; i++) {
        value_of(flat[i], key, length, value, sizeof value);
        if (strcmp(value, "-") != 0)
            return true;
    }
    return false;
}

/* Adds a row for a key whose values differ. Returns true if there was one. */
static bool add_difference(struct grid *grid, char *const *flat, uint32_t n, const char *key, size_t length)
{
    char values[RUNS_MOST_COMPARED][80];
    bool differs = false;
    for (uint32_t i = 0; i < n; i++) {
        value_of(flat[i], key, length, values[i], sizeof values[i]);
        differs |= strcmp(values[i], values[0]) != 0;
    }
    if (!differs)
        return false;
    grid_addf(grid, "  %.*s", (int)length, key);
    for (uint32_t i = 0; i < n; i++)
        grid_add(grid, values[i]);
    return true;
}

static void add_differences(struct grid *grid, const struct run_summary *runs, uint32_t n)
{
    char *flat[RUNS_MOST_COMPARED] = {0};
    uint32_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        char *text = run_folder_read(runs[i].folder, FOLDER_CONFIG);
        flat[i] = runs_flatten_config(text);
        free(text);
    }
    for (uint32_t i = 0; i < n; i++)
        for (const char *line = flat[i]; *line && rows < MOST_DIFFERENCES; line += strcspn(line, "\n") + 1) {
            size_t length = strcspn(line, ":");
            if (!seen_before(flat, i, line, length))
                rows += add_difference(grid, flat, n, line, length);
        }
    for (uint32_t i = 0; i < n; i++)
        free(flat[i]);
}

/* ---- tables: a row for each run, or a column for each run that is compared ---- */

enum figure_kind { KIND_TEXT, KIND_U32, KIND_U64, KIND_BYTES, KIND_SECONDS, KIND_VALUE, KIND_RATE };
enum { LISTED = 1, COMPARED = 2 };

static const struct figure {
    const char *title;
    enum figure_kind kind;
    size_t offset; /* in a struct run_summary */
    uint32_t where;
} figures[] = {
    {"result", KIND_TEXT, offsetof(struct run_summary, result), LISTED | COMPARED},
    {">return", KIND_VALUE, offsetof(struct run_summary, final_value), LISTED | COMPARED},
    {">best", KIND_VALUE, offsetof(struct run_summary, best), LISTED | COMPARED},
    {">steps", KIND_U64, offsetof(struct run_summary, steps), LISTED | COMPARED},
    {">updates", KIND_U64, offsetof(struct run_summary, learner_steps), COMPARED},
    {">time", KIND_SECONDS, offsetof(struct run_summary, seconds), LISTED | COMPARED},
    {">inserts/s", KIND_RATE, offsetof(struct run_summary, inserts), COMPARED},
    {">samples/s", KIND_RATE, offsetof(struct run_summary, samples), COMPARED},
    {">actors", KIND_U32, offsetof(struct run_summary, actors), LISTED | COMPARED},
    {">learners", KIND_U32, offsetof(struct run_summary, learners), LISTED | COMPARED},
    {">seed", KIND_TEXT, offsetof(struct run_summary, seed), LISTED},
    {">disk", KIND_BYTES, offsetof(struct run_summary, bytes), LISTED},
    {">tables", KIND_BYTES, offsetof(struct run_summary, tables), LISTED},
};
#define N_FIGURES (sizeof figures / sizeof *figures)

static const char *figure_text(const struct figure *self, const struct run_summary *run, char *out)
{
    const void *at = (const char *)run + self->offset;
    switch (self->kind) {
    case KIND_TEXT:
        return at;
    case KIND_U32:
        return format_count(out, *(const uint32_t *)at);
    case KIND_U64:
        return format_count(out, *(const uint64_t *)at);
    case KIND_BYTES:
        return format_bytes(out, *(const uint64_t *)at);
    case KIND_SECONDS:
        return format_seconds(out, *(const double *)at);
    case KIND_VALUE:
        return format_measured(out, *(const double *)at);
    case KIND_RATE:
        break;
    }
    return report_rate(*(const double *)at, out);
}

void runs_print(const struct run_summary *runs, uint32_t n, FILE *out)
{
    const char *titles[N_FIGURES + 1] = {"run"};
    uint32_t columns = 1;
    struct grid grid;
    format_buffer cell;
    for (size_t f = 0; f < N_FIGURES; f++)
        if (figures[f].where & LISTED)
            titles[columns++] = figures[f].title;
    grid_init(&grid, titles, columns);
    for (uint32_t i = 0; i < n; i++) {
        grid_add(&grid, runs[i].name);
        for (size_t f = 0; f < N_FIGURES; f++)
            if (figures[f].where & LISTED)
                grid_add(&grid, figure_text(&figures[f], &runs[i], cell));
    }
    grid_print(&grid, out);
}

void runs_print_compared(const struct run_summary *runs, uint32_t n, FILE *out)
{
    const char *titles[RUNS_MOST_COMPARED + 1] = {""};
    char names[RUNS_MOST_COMPARED][160];
    struct grid grid;
    format_buffer cell;
    n = n < RUNS_MOST_COMPARED ? n : RUNS_MOST_COMPARED;
    for (uint32_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], ">%s", runs[i].name);
        titles[i + 1] = names[i];
    }
    grid_init(&grid, titles, n + 1);
    for (size_t f = 0; f < N_FIGURES; f++) {
        if (!(figures[f].where & COMPARED))
            continue;
        grid_addf(&grid, "  %s", figures[f].title + (figures[f].title[0] == '>'));
        for (uint32_t i = 0; i < n; i++)
            grid_add(&grid, figure_text(&figures[f], &runs[i], cell));
    }
    add_differences(&grid, runs, n);
    grid_print(&grid, out);
}

/* ---- the page ---- */

void runs_put_curves(struct json *out, const struct run_summary *run)
{
    json_open(out, '{');
    json_map_write(out, summary_rows, run);
    char *config = run_folder_read(run->folder, FOLDER_CONFIG), *flat = runs_flatten_config(config);
    json_text(out, "config", flat);
    free(config);
    free(flat);
    series_put_curves(out, run->folder);
    json_close(out, '}');
}

rp_status runs_write_page(const struct run_summary *runs, uint32_t n, const char *path, rp_error *err)
{
    struct text text = {0};
    struct json json = {0};
    json_open(&json, '{');
    json_key(&json, "api/state");
    json_raw(&json, "{\"can\": {\"runs\": true}}");
    json_begin(&json, "api/runs", '{');
    json_begin(&json, "runs", '[');
    for (uint32_t i = 0; i < n; i++)
        runs_put_curves(&json, &runs[i]);
    json_close(&json, ']');
    json_close(&json, '}');
    json_close(&json, '}');
    char *answers = json_need(&json);
    page_put_alone(&text, answers);
    free(answers);
    FILE *out = fopen(path, "we");
    bool ok = out && fputs(text_get(&text), out) >= 0;
    if (out && fclose(out) != 0)
        ok = false;
    text_fini(&text);
    return ok ? RP_OK : err_set(err, RP_IO, "'%s' cannot be written", path);
}
