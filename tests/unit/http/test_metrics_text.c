/* The text for Prometheus, read back by a strict reader of its own and compared with the snapshot that it shows. */
#include <stdint.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/http/metrics_text.h"
#include "proto/base/rng.h"
#include "replay/error.h"
#include "tests/support/naive.h"
#include "tests/support/test.h"

/* ---- a reader ---- */

#define LINES_MOST 20000u

struct sample {
    char name[96], labels[700];
    double value;
};

struct text {
    struct sample samples[LINES_MOST];
    uint32_t n;
    char families[300][2][96]; /* name, type */
    uint32_t n_families;
    bool ended;
};

static double read_number(const char *text)
{
    char *end;
    double value = strcmp(text, "+Inf") == 0 ? INFINITY : strcmp(text, "-Inf") == 0 ? -INFINITY : strtod(text, &end);
    if (!isinf(value))
        assert_true(end != text && !*end);
    return value;
}

/* The family of a sample is the newest one: its name, with a suffix that the type allows. */
static void check_family(const struct text *text, const char *name, bool openmetrics)
{
    assert_true(text->n_families > 0);
    const char *family = text->families[text->n_families - 1][0], *type = text->families[text->n_families - 1][1];
    size_t size = strlen(family);
    assert_memory_equal(name, family, size);
    const char *suffix = name + size;
    if (strcmp(type, "histogram") == 0)
        assert_true(!strcmp(suffix, "_bucket") || !strcmp(suffix, "_sum") || !strcmp(suffix, "_count"));
    else if (strcmp(type, "counter") == 0 && openmetrics)
        assert_string_equal(suffix, "_total");
    else
        assert_string_equal(suffix, "");
    if (strcmp(type, "counter") == 0)
        assert_string_equal(name + strlen(name) - 6, "_total");
}

static void read_sample(struct text *text, char *line, bool openmetrics)
{
    struct sample *sample = &text->samples[text->n++];
    assert_true(text->n < LINES_MOST);
    size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz_");
    assert_true(name > 0 && name < sizeof sample->name);
    snprintf(sample->name, sizeof sample->name, "%.*s", (int)name, line);
    char *rest = line + name;
    sample->labels[0] = '\0';
    if (*rest == '{') {
        char *at = ++rest;
        bool quoted = false;
        for (; *at && (quoted || *at != '}'); at++) {
            if (quoted && *at == '\\') {
                at++;
                assert_true(*at == 'n' || *at == '"' || *at == '\\');
            } else if (*at == '"') {
                quoted = !quoted;
            }
        }
        assert_true(*at == '}' && !quoted);
        *at = '\0';
        snprintf(sample->labels, sizeof sample->labels, "%s", rest);
        rest = at + 1;
    }
    assert_true(*rest == ' ');
    sample->value = read_number(rest + 1);
    check_family(text, sample->name, openmetrics);
}

static void read_head(struct text *text, const char *line)
{
    char name[96], type[32];
    static char helped[96];
    if (sscanf(line, "# HELP %95s", name) == 1) {
        snprintf(helped, sizeof helped, "%s", name);
    } else if (sscanf(line, "# TYPE %95s %31s", name, type) == 2) {
        assert_string_equal(name, helped);
        assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") || !strcmp(type, "histogram"));
        for (uint32_t i = 0; i < text->n_families; i++)
            assert_string_not_equal(text->families[i][0], name);
        snprintf(text->families[text->n_families][0], 96, "%s", name);
        snprintf(text->families[text->n_families++][1], 96, "%s", type);
    } else {
        assert_string_equal(line, "# EOF");
        text->ended = true;
    }
}

static struct text *read_text(const struct out *out, bool openmetrics)
{
    struct text *text = calloc(1, sizeof *text);
    char *copy = calloc(1, out->size + 1), *next; /* the text is not terminated */
    memcpy(copy, out->data, out->size);
    assert_int_equal(strlen(copy), out->size);
    assert_true(copy[out->size - 1] == '\n');
    for (char *line = copy; *line; line = next) {
        next = strchr(line, '\n') + 1;
        next[-1] = '\0';
        assert_false(text->ended);
        if (line[0] == '#')
            read_head(text, line);
        else
            read_sample(text, line, openmetrics);
    }
    assert_int_equal(text->ended, openmetrics);
    free(copy);
    return text;
}

static double value_of(const struct text *text, const char *name, const char *labels)
{
    double value = NAN;
    for (uint32_t i = 0; i < text->n; i++)
        if (strcmp(text->samples[i].name, name) == 0 && strcmp(text->samples[i].labels, labels) == 0) {
            assert_true(isnan(value)); /* no series twice */
            value = text->samples[i].value;
        }
    return value;
}

/* ---- snapshots ---- */

static void fill_histogram(struct rng *rng, struct histogram *out)
{
    uint32_t n = (uint32_t)(rng_next(rng) % 60);
    for (uint32_t i = 0; i < n; i++)
        histogram_add(out, rng_next(rng) >> (rng_next(rng) % 64), 1 + rng_next(rng) % 5);
}

#define TABLES 5u
static const char *const names[TABLES] = {"replay", "with \"quotes\"", "back\\slash\nand newline", "\xc3\xa4\xff",
                                          "},{"};
static const char *const shown[TABLES] = {"replay", "with \\\"quotes\\\"", "back\\\\slash\\nand newline", "\xc3\xa4?",
                                          "},{"};

static struct snapshot *random_snapshot(struct rng *rng)
{
    struct snapshot *self = snapshot_new();
    self->parts = SNAPSHOT_STATE | SNAPSHOT_SESSIONS;
    self->server = (struct snapshot_server){.release = "1.2.3", .service = "", .ingest = "", .events = ""};
    self->server.bytes_in = rng_next(rng) >> 12;
    self->server.failed[RP_NOT_FOUND] = rng_next(rng) % 1000;
    self->disk.on = rng_next(rng) % 2;
    self->n_tables = TABLES;
    self->tables = snapshot_take(self, TABLES, sizeof *self->tables);
    for (uint32_t i = 0; i < TABLES; i++) {
        struct snapshot_table *table = &self->tables[i];
        table->name = names[i];
        table->inserts = rng_next(rng) >> 12;
        table->cursor = (double)(int64_t)rng_next(rng) / 3e15;
        table->min_diff = i % 2 ? -INFINITY : -1.5;
        table->max_diff = i % 2 ? INFINITY : 1e9;
        fill_histogram(rng, &table->age);
        fill_histogram(rng, &table->staleness);
    }
    self->n_sessions = (uint32_t)(rng_next(rng) % 300);
    self->sessions = snapshot_take(self, self->n_sessions, sizeof *self->sessions);
    for (uint32_t i = 0; i < self->n_sessions; i++) {
        struct snapshot_session *session = &self->sessions[i];
        snprintf(session->name, sizeof session->name, "actor");
        session->ordinal = i;
        session->received_bytes = rng_next(rng) % 100;
        session->expired = rng_next(rng) % 4 == 0;
    }
    fill_histogram(rng, &self->insert);
    return self;
}

/* ---- tests ---- */

static void check_histogram(const struct text *text, const char *name, const char *labels,
                            const struct histogram *histogram, const struct histogram_scale *scale)
{
    char bucket[96], with[800], other[96];
    const char *comma = labels[0] ? "," : "";
    snprintf(bucket, sizeof bucket, "%s_bucket", name);
    double before = 0, count = (double)histogram_count(histogram);
    uint32_t n = 0;
    for (uint32_t i = 0; i < text->n; i++) {
        const struct sample *sample = &text->samples[i];
        size_t size = strlen(labels);
        if (strcmp(sample->name, bucket) != 0 || strncmp(sample->labels, labels, size) != 0)
            continue;
        const char *le = strstr(sample->labels + size, "le=\"");
        assert_non_null(le);
        char number[64];
        snprintf(number, sizeof number, "%.*s", (int)strcspn(le + 4, "\""), le + 4);
        double bound = read_number(number), naive = 0;
        for (uint32_t b = 0; b < HISTOGRAM_BUCKETS; b++)
            naive +=
                (double)histogram_bound(b) / scale->per_unit <= bound * (1 + 1e-9) ? (double)histogram->counts[b] : 0;
        assert_true(sample->value == naive);
        assert_true(sample->value >= before);
        before = sample->value;
        n++;
    }
    assert_int_equal(n, (scale->last - scale->first) / scale->step + 2);
    snprintf(with, sizeof with, "%s%sle=\"+Inf\"", labels, comma);
    assert_true(value_of(text, bucket, with) == count);
    snprintf(other, sizeof other, "%s_count", name);
    assert_true(value_of(text, other, labels) == count);
    snprintf(other, sizeof other, "%s_sum", name);
    double sum = histogram->sum / scale->per_unit;
    assert_true(fabs(value_of(text, other, labels) - sum) <= 1e-12 * sum);
}

static void check_sessions(const struct text *text, const struct snapshot *snapshot)
{
    uint32_t open = 0, shown_n = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < snapshot->n_sessions; i++) {
        const struct snapshot_session *session = &snapshot->sessions[i];
        char labels[100];
        snprintf(labels, sizeof labels, "session=\"actor\",ordinal=\"%u\"", session->ordinal);
        double value = value_of(text, "replay_session_received_bytes_total", labels);
        open += !session->expired;
        assert_true(!session->expired || isnan(value));
        if (isnan(value))
            continue;
        assert_true(value == (double)session->received_bytes);
        least = session->received_bytes < least ? session->received_bytes : least;
        shown_n++;
    }
    assert_int_equal(shown_n, open < METRICS_SESSIONS ? open : METRICS_SESSIONS);
    uint32_t larger = 0;
    for (uint32_t i = 0; i < snapshot->n_sessions; i++)
        larger += !snapshot->sessions[i].expired && snapshot->sessions[i].received_bytes > least;
    assert_true(larger <= METRICS_SESSIONS);
}

TEST(the_text_says_what_the_snapshot_says)
{
    static struct threads threads;
    struct rng rng;
    rng_seed(&rng, naive_seed("metrics_text"));
    threads_look(&threads, 1);
    assert_true(threads.n >= 1 && threads.process.resident_bytes > 0 && threads.process.start_s > 1e9);
    for (uint32_t round = 0; round < 20; round++) {
        bool openmetrics = round % 2;
        struct snapshot *snapshot = random_snapshot(&rng);
        struct out out = {0};
        metrics_text(&out, snapshot, &threads, &(struct metrics_style){.openmetrics = openmetrics, .shard = -1});
        assert_false(out.failed);
        struct text *text = read_text(&out, openmetrics);
        assert_true(value_of(text, "replay_build_info", "version=\"1.2.3\"") == 1);
        assert_true(value_of(text, "replay_received_bytes_total", "") == (double)snapshot->server.bytes_in);
        assert_true(value_of(text, "replay_replies_failed_total", "status=\"NOT_FOUND\"") ==
                    (double)snapshot->server.failed[RP_NOT_FOUND]);
        assert_int_equal(isnan(value_of(text, "replay_disk_bytes", "")), !snapshot->disk.on);
        check_histogram(text, "replay_insert_duration_seconds", "", &snapshot->insert, &latency_scale);
        for (uint32_t i = 0; i < TABLES; i++) {
            const struct snapshot_table *table = &snapshot->tables[i];
            char labels[200];
            snprintf(labels, sizeof labels, "table=\"%s\"", shown[i]);
            assert_true(value_of(text, "replay_table_inserts_total", labels) == (double)table->inserts);
            assert_true(fabs(value_of(text, "replay_limiter_cursor", labels) - table->cursor) <=
                        1e-14 * fabs(table->cursor));
            assert_true(value_of(text, "replay_limiter_cursor_min", labels) == table->min_diff);
            assert_true(value_of(text, "replay_limiter_cursor_max", labels) == table->max_diff);
            check_histogram(text, "replay_sampled_age_seconds", labels, &table->age, &age_scale);
            check_histogram(text, "replay_sampled_staleness_versions", labels, &table->staleness, &versions_scale);
        }
        check_sessions(text, snapshot);
        free(text);
        out_fini(&out);
        snapshot_destroy(&snapshot);
    }
}

/* A shard's number is the first label of everything. */
TEST(a_shard_labels_all_its_metrics)
{
    static struct threads threads;
    struct rng rng;
    rng_seed(&rng, naive_seed("metrics_text"));
    threads_look(&threads, 1);
    struct snapshot *snapshot = random_snapshot(&rng);
    struct out out = {0};
    metrics_text(&out, snapshot, &threads, &(struct metrics_style){.shard = 3});
    assert_false(out.failed);
    struct text *text = read_text(&out, false);
    char labels[200];
    assert_true(value_of(text, "replay_received_bytes_total", "shard=\"3\"") == (double)snapshot->server.bytes_in);
    assert_true(value_of(text, "replay_build_info", "shard=\"3\",version=\"1.2.3\"") == 1);
    snprintf(labels, sizeof labels, "shard=\"3\",table=\"%s\"", shown[0]);
    assert_true(value_of(text, "replay_table_inserts_total", labels) == (double)snapshot->tables[0].inserts);
    check_histogram(text, "replay_sampled_age_seconds", labels, &snapshot->tables[0].age, &age_scale);
    check_histogram(text, "replay_insert_duration_seconds", "shard=\"3\"", &snapshot->insert, &latency_scale);
    free(text);
    out_fini(&out);
    snapshot_destroy(&snapshot);
}

TEST(numbers_are_written_as_they_are)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},
                 {1, "1"},
                 {-1, "-1"},
                 {0.5, "0.5"},
                 {1e15, "1000000000000000"},
                 {INFINITY, "+Inf"},
                 {-INFINITY, "-Inf"},
                 {NAN, "NaN"},
                 {-0.25, "-0.25"},
                 {1e300, "1e+300"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct out out = {0};
        out_real(&out, cases[i].value);
        assert_int_equal(out.size, strlen(cases[i].text));
        assert_memory_equal(out.data, cases[i].text, out.size);
        out_fini(&out);
    }
    struct out out = {0};
    out_u64(&out, UINT64_MAX);
    assert_memory_equal(out.data, "18446744073709551615", 20);
    out_fini(&out);
}
