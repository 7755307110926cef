/* The text for Prometheus, read back by a strict reader of its own and compared with the snapshot that it shows. */

#include "broker/program/metrics_text.h"
#include "broker/program/threads.h"
#include "proto/base/arena.h"
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

struct parsed {
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
static void check_family(const struct parsed *text, const char *name, bool openmetrics)
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

static void read_sample(struct parsed *text, char *line, bool openmetrics)
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

static void read_head(struct parsed *text, const char *line)
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

static struct parsed *read_text(const struct text *out, bool openmetrics)
{
    struct parsed *text = calloc(1, sizeof *text);
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

static double value_of(const struct parsed *text, const char *name, const char *labels)
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

/* The histograms of a random snapshot, beside the messages that have them. */
struct made {
    struct arena arena;
    Replay__InfoReply info;
    struct histogram insert, ages[TABLES], staleness[TABLES];
};

#define NEW(arena, type, init)                                                                                         \
    __extension__({                                                                                                    \
        type *new_ = arena_take(arena, 1, sizeof *new_);                                                               \
        init(new_);                                                                                                    \
        new_;                                                                                                          \
    })

static Replay__TableInfo *random_table(struct made *self, struct rng *rng, uint32_t i)
{
    Replay__TableInfo *table = NEW(&self->arena, Replay__TableInfo, replay__table_info__init);
    table->limiter = NEW(&self->arena, Replay__LimiterInfo, replay__limiter_info__init);
    table->name = (char *)(uintptr_t)names[i];
    table->total_inserts = rng_next(rng) >> 12;
    if (i == 1) {
        table->restored = NEW(&self->arena, Replay__TableRestored, replay__table_restored__init);
        table->restored->total_inserts = table->total_inserts / 2;
    }
    table->limiter->cursor = (double)(int64_t)rng_next(rng) / 3e15;
    table->limiter->min_diff = i % 2 ? -1.7e308 : -1.5;
    table->limiter->max_diff = i % 2 ? 1.7e308 : 1e9;
    fill_histogram(rng, &self->ages[i]);
    fill_histogram(rng, &self->staleness[i]);
    table->ages = self->ages[i].counts;
    table->n_ages = histogram_used(&self->ages[i]);
    table->ages_sum = self->ages[i].sum;
    table->staleness = self->staleness[i].counts;
    table->n_staleness = histogram_used(&self->staleness[i]);
    table->staleness_sum = self->staleness[i].sum;
    return table;
}

static void random_info(struct made *self, struct rng *rng, struct threads *threads)
{
    *self = (struct made){.info = REPLAY__INFO_REPLY__INIT};
    struct arena *arena = &self->arena;
    Replay__InfoReply *info = &self->info;
    Replay__ServerInfo *server = info->server = NEW(arena, Replay__ServerInfo, replay__server_info__init);
    server->memory = NEW(arena, Replay__MemoryInfo, replay__memory_info__init);
    info->process = &threads->process;
    server->release = (char *)(uintptr_t) "1.2.3";
    server->bytes_in = rng_next(rng) >> 12;
    server->failed = arena_take(arena, 1, sizeof(*server->failed));
    server->failed[server->n_failed++] = NEW(arena, Replay__StatusInfo, replay__status_info__init);
    server->failed[0]->status = (char *)(uintptr_t) "NOT_FOUND";
    server->failed[0]->count = rng_next(rng) % 1000;
    if (rng_next(rng) % 2)
        info->disk = NEW(arena, Replay__DiskInfo, replay__disk_info__init);
    fill_histogram(rng, &self->insert);
    server->insert_times = self->insert.counts;
    server->n_insert_times = histogram_used(&self->insert);
    server->insert_times_sum = self->insert.sum;
    info->tables = arena_take(arena, TABLES, sizeof(*info->tables));
    for (uint32_t i = 0; i < TABLES; i++)
        info->tables[info->n_tables++] = random_table(self, rng, i);
    info->n_sessions = rng_next(rng) % 300;
    info->sessions = arena_take(arena, info->n_sessions, sizeof(*info->sessions));
    for (uint32_t i = 0; i < info->n_sessions; i++) {
        Replay__SessionInfo *session = NEW(arena, Replay__SessionInfo, replay__session_info__init);
        session->name = (char *)(uintptr_t) "actor";
        session->ordinal = i;
        session->received_bytes = rng_next(rng) % 100;
        session->expired = rng_next(rng) % 4 == 0;
        info->sessions[i] = session;
    }
}

/* ---- tests ---- */

static void check_histogram(const struct parsed *text, const char *name, const char *labels,
                            const struct histogram *histogram, const struct figure_scale *scale)
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
    assert_int_equal(n, count > 0 ? (scale->last - scale->first) / scale->step + 2
                                  : 1); /* never: no buckets but the last */
    snprintf(with, sizeof with, "%s%sle=\"+Inf\"", labels, comma);
    assert_true(value_of(text, bucket, with) == count);
    snprintf(other, sizeof other, "%s_count", name);
    assert_true(value_of(text, other, labels) == count);
    snprintf(other, sizeof other, "%s_sum", name);
    double sum = histogram->sum / scale->per_unit;
    assert_true(fabs(value_of(text, other, labels) - sum) <= 1e-12 * sum);
}

static void check_sessions(const struct parsed *text, const Replay__InfoReply *info)
{
    uint32_t open = 0, shown_n = 0;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < info->n_sessions; i++) {
        const Replay__SessionInfo *session = info->sessions[i];
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
    for (uint32_t i = 0; i < info->n_sessions; i++)
        larger += !info->sessions[i]->expired && info->sessions[i]->received_bytes > least;
    assert_true(larger <= METRICS_SESSIONS);
}

static const struct figure_scale *scale_of(const struct figures *figures, const char *name)
{
    return figure_find(figures->of, name)->scale;
}

static void check_table(const struct parsed *text, const struct made *made, uint32_t i, const char *labels)
{
    const Replay__TableInfo *table = made->info.tables[i];
    const Replay__LimiterInfo *limiter = table->limiter;
    uint64_t before = table->restored ? table->restored->total_inserts : 0;
    assert_true(value_of(text, "replay_table_inserts_total", labels) == (double)(table->total_inserts - before));
    assert_true(fabs(value_of(text, "replay_limiter_cursor", labels) - limiter->cursor) <=
                1e-14 * fabs(limiter->cursor));
    assert_true(value_of(text, "replay_limiter_cursor_min", labels) == (i % 2 ? -INFINITY : limiter->min_diff));
    assert_true(value_of(text, "replay_limiter_cursor_max", labels) == (i % 2 ? INFINITY : limiter->max_diff));
    check_histogram(text, "replay_sampled_age_seconds", labels, &made->ages[i], scale_of(&table_figures, "ages"));
    check_histogram(text, "replay_sampled_staleness_versions", labels, &made->staleness[i],
                    scale_of(&table_figures, "staleness"));
}

TEST(the_text_says_what_the_snapshot_says)
{
    static struct threads threads;
    static struct made made;
    struct rng rng;
    rng_seed(&rng, naive_seed("metrics_text"));
    threads_look(&threads, 1);
    assert_true(threads.n >= 1 && threads.process.resident_bytes > 0 && threads.process.start_s > 1e9);
    for (uint32_t round = 0; round < 20; round++) {
        bool openmetrics = round % 2;
        const Replay__ServerInfo *server;
        struct text out = {0};
        random_info(&made, &rng, &threads);
        server = made.info.server;
        metrics_text(&out, &made.info, &(struct metrics_style){.openmetrics = openmetrics, .shard = -1});
        struct parsed *text = read_text(&out, openmetrics);
        assert_true(value_of(text, "replay_build_info", "version=\"1.2.3\"") == 1);
        assert_true(value_of(text, "replay_received_bytes_total", "") == (double)server->bytes_in);
        assert_true(value_of(text, "replay_replies_failed_total", "status=\"NOT_FOUND\"") ==
                    (double)server->failed[0]->count);
        assert_int_equal(isnan(value_of(text, "replay_disk_bytes", "")), !made.info.disk);
        check_histogram(text, "replay_insert_duration_seconds", "", &made.insert,
                        scale_of(&server_figures, "insert_times"));
        for (uint32_t i = 0; i < TABLES; i++) {
            char labels[200];
            snprintf(labels, sizeof labels, "table=\"%s\"", shown[i]);
            check_table(text, &made, i, labels);
        }
        check_sessions(text, &made.info);
        free(text);
        text_fini(&out);
        arena_fini(&made.arena);
    }
}

/* A shard's number is the first label of everything. */
TEST(a_shard_labels_all_its_metrics)
{
    static struct threads threads;
    static struct made made;
    struct rng rng;
    struct text out = {0};
    rng_seed(&rng, naive_seed("metrics_text"));
    threads_look(&threads, 1);
    random_info(&made, &rng, &threads);
    metrics_text(&out, &made.info, &(struct metrics_style){.shard = 3});
    struct parsed *text = read_text(&out, false);
    char labels[200];
    assert_true(value_of(text, "replay_received_bytes_total", "shard=\"3\"") == (double)made.info.server->bytes_in);
    assert_true(value_of(text, "replay_build_info", "shard=\"3\",version=\"1.2.3\"") == 1);
    snprintf(labels, sizeof labels, "shard=\"3\",table=\"%s\"", shown[0]);
    check_table(text, &made, 0, labels);
    check_histogram(text, "replay_insert_duration_seconds", "shard=\"3\"", &made.insert,
                    scale_of(&server_figures, "insert_times"));
    free(text);
    text_fini(&out);
    arena_fini(&made.arena);
}

/* Every number of these messages has a row: nothing is forgotten in the sum over shards. */
TEST(every_number_has_a_row)
{
    static const struct figures *const lists[] = {&server_figures,  &memory_figures,  &disk_figures,    &status_figures,
                                                  &command_figures, &table_figures,   &limiter_figures, &slot_figures,
                                                  &counter_figures, &process_figures, &thread_figures};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const ProtobufCMessageDescriptor *of = lists[i]->of;
        for (const struct figure *row = lists[i]->rows; row->name; row++)
            if (!protobuf_c_message_descriptor_get_field_by_name(of, row->name))
                fail_msg("%s has no field %s", of->name, row->name);
        for (unsigned k = 0; k < of->n_fields; k++) {
            ProtobufCType type = of->fields[k].type;
            if (type != PROTOBUF_C_TYPE_STRING && type != PROTOBUF_C_TYPE_MESSAGE &&
                !figure_find(of, of->fields[k].name))
                fail_msg("figures.c has no row for %s of %s", of->fields[k].name, of->name);
        }
    }
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
        struct text out = {0};
        metrics_real(&out, cases[i].value);
        assert_int_equal(out.size, strlen(cases[i].text));
        assert_memory_equal(out.data, cases[i].text, out.size);
        text_fini(&out);
    }
}
