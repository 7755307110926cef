#include "broker/http/metrics_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/http/fields.h"
#include "replay/error.h"

/* Bounds are 2^bucket - 1. */
const struct histogram_scale latency_scale = {10, 37, 1, 1e9}, age_scale = {20, 52, 2, 1e9},
                             versions_scale = {0, 20, 1, 1};

struct writer {
    struct out *out;
    bool openmetrics;
    const char *shard; /* label of all samples: shard="2"; NULL: the broker is alone */
};

/* Elements of a list, each with its labels. */
struct rows {
    const char *base;
    size_t stride;
    uint32_t n;
    char **labels; /* name="value", escaped; NULL: no labels */
};

/* ---- families ---- */

static void put_head(const struct writer *self, const char *name, const char *suffix, const char *type,
                     const char *help)
{
    struct out *out = self->out;
    const char *shown =
        self->openmetrics ? "" : suffix; /* OpenMetrics names a family without the suffix of its counter */
    out_text(out, "# HELP ");
    out_text(out, name);
    out_text(out, shown);
    out_text(out, " ");
    out_escaped(out, help, self->openmetrics);
    out_text(out, "\n# TYPE ");
    out_text(out, name);
    out_text(out, shown);
    out_text(out, " ");
    out_text(out, type);
    out_text(out, "\n");
}

/* Writes the labels that there are, with commas between them. False: none. */
static bool put_labels(const struct writer *self, const char *labels, const char *more)
{
    const char *all[] = {self->shard, labels, more};
    const char *before = "{";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i])
            continue;
        out_text(self->out, before);
        out_text(self->out, all[i]);
        before = ",";
    }
    return before[0] == ',';
}

/* Writes "name_suffix{shard,labels,more} value". */
static void put_sample(const struct writer *self, const char *name, const char *suffix, const char *labels,
                       const char *more, double value)
{
    struct out *out = self->out;
    out_text(out, name);
    out_text(out, suffix);
    if (put_labels(self, labels, more))
        out_text(out, "}");
    out_text(out, " ");
    out_real(out, value);
    out_text(out, "\n");
}

/* Writes all metrics of a list of structs. A list without elements has no metrics. */
static void put_fields(const struct writer *self, const struct field *fields, const struct rows *rows)
{
    const char *before = "";
    for (; rows->n && fields->name; fields++) {
        if (fields->type == METRIC_NONE)
            continue;
        bool counts = fields->type == METRIC_COUNTER;
        const char *suffix = counts ? "_total" : "";
        if (strcmp(before, fields->metric) != 0)
            put_head(self, fields->metric, suffix, counts ? "counter" : "gauge", fields->help);
        before = fields->metric;
        for (uint32_t i = 0; i < rows->n; i++)
            put_sample(self, fields->metric, suffix, rows->labels ? rows->labels[i] : NULL, fields->label,
                       field_value(fields, rows->base + i * rows->stride));
    }
}

static void put_struct(const struct writer *self, const struct field *fields, const void *base)
{
    put_fields(self, fields, &(struct rows){.base = base, .n = 1});
}

/* The bounds of a histogram as they are shown: the same for all elements of a list. */
struct bounds {
    const struct histogram_scale *scale;
    char text[HISTOGRAM_BUCKETS][32];
};

static void bounds_init(struct bounds *self, const struct histogram_scale *scale)
{
    self->scale = scale;
    for (uint32_t b = scale->first; b <= scale->last; b += scale->step) {
        struct out out = {0};
        out_real(&out, (double)histogram_bound(b) / scale->per_unit);
        snprintf(self->text[b], sizeof self->text[b], "%.*s", (int)out.size, out.data ? out.data : "");
        out_fini(&out);
    }
}

static void put_histogram(const struct writer *self, const char *name, const char *labels,
                          const struct histogram *histogram, const struct bounds *bounds)
{
    struct out *out = self->out;
    const struct histogram_scale *scale = bounds->scale;
    uint64_t below = 0;
    uint32_t next = 0;
    for (uint32_t b = scale->first; b <= scale->last; b += scale->step) {
        while (next <= b)
            below += histogram->counts[next++];
        out_text(out, name);
        out_text(out, "_bucket");
        out_text(out, put_labels(self, labels, NULL) ? ",le=\"" : "{le=\"");
        out_text(out, bounds->text[b]);
        out_text(out, "\"} ");
        out_u64(out, below);
        out_text(out, "\n");
    }
    double count = (double)histogram_count(histogram);
    put_sample(self, name, "_bucket", labels, "le=\"+Inf\"", count);
    put_sample(self, name, "_sum", labels, NULL, histogram->sum / scale->per_unit);
    put_sample(self, name, "_count", labels, NULL, count);
}

/* Writes a histogram that each element of a list has at this offset. */
static void put_histograms(const struct writer *self, const char *name, const char *help, const struct rows *rows,
                           size_t offset, const struct histogram_scale *scale)
{
    struct bounds bounds;
    bounds_init(&bounds, scale);
    if (rows->n)
        put_head(self, name, "", "histogram", help);
    for (uint32_t i = 0; i < rows->n; i++)
        put_histogram(self, name, rows->labels ? rows->labels[i] : NULL,
                      (const struct histogram *)(const void *)(rows->base + i * rows->stride + offset), &bounds);
}

/* ---- labels ---- */

static void add_label(struct out *out, const char *name, const char *value)
{
    if (out->size)
        out_text(out, ",");
    out_text(out, name);
    out_text(out, "=\"");
    out_escaped(out, value, true);
    out_text(out, "\"");
}

/* Gives the text, terminated; NULL: no memory. */
static char *label_take(struct out *label)
{
    out_bytes(label, "", 1);
    if (!label->failed)
        return label->data;
    free(label->data);
    return NULL;
}

/* Makes the label of each element from the text that `pick` returns. On failure out is failed, and there are no elements. */
static void rows_label(struct rows *self, struct out *out, const char *name, const char *(*pick)(const void *element))
{
    self->labels = calloc(self->n + 1u, sizeof(*self->labels));
    for (uint32_t i = 0; self->labels && !out->failed && i < self->n; i++) {
        struct out label = {0};
        add_label(&label, name, pick(self->base + i * self->stride));
        self->labels[i] = label_take(&label);
        out->failed |= !self->labels[i];
    }
    out->failed |= !self->labels;
    if (out->failed)
        self->n = 0;
}

static void rows_free(struct rows *self)
{
    for (uint32_t i = 0; self->labels && self->labels[i]; i++)
        free(self->labels[i]);
    free(self->labels);
}

static const char *first_text(const void *element)
{
    return *(const char *const *)element; /* the name is the first member */
}

static const char *first_name(const void *element)
{
    return element; /* the name is an array at the beginning */
}

/* ---- parts ---- */

#define ROWS(list, count)                                                                                              \
    {                                                                                                                  \
        .base = (const char *)(list), .stride = sizeof *(list), .n = (count)                                           \
    }

static void put_tables(const struct writer *self, const struct snapshot *snapshot)
{
    struct rows rows = ROWS(snapshot->tables, snapshot->n_tables);
    rows_label(&rows, self->out, "table", first_text);
    put_fields(self, table_fields, &rows);
    put_histograms(self, "replay_sampled_age_seconds", "Age of items when they were sampled.", &rows,
                   offsetof(struct snapshot_table, age), &age_scale);
    put_histograms(self, "replay_sampled_staleness_versions",
                   "Versions of the policy that were published between an item's making and its sampling.", &rows,
                   offsetof(struct snapshot_table, staleness), &versions_scale);
    rows_free(&rows);
}

static void put_commands(const struct writer *self, const struct snapshot *snapshot)
{
    struct rows rows = ROWS(snapshot->commands, snapshot->n_commands);
    rows_label(&rows, self->out, "command", first_text);
    put_fields(self, command_fields, &rows);
    put_histograms(self, "replay_request_duration_seconds", "From a request to its reply, waiting included.", &rows,
                   offsetof(struct snapshot_command, latency), &latency_scale);
    put_histograms(self, "replay_request_wait_seconds", "The same, of requests that were not answered at once.", &rows,
                   offsetof(struct snapshot_command, waited), &latency_scale);
    rows_free(&rows);
}

static int by_bytes(const void *a, const void *b)
{
    const struct snapshot_session *const *left = a, *const *right = b;
    if ((*left)->received_bytes != (*right)->received_bytes)
        return (*left)->received_bytes < (*right)->received_bytes ? 1 : -1;
    return (*left)->ordinal < (*right)->ordinal ? -1 : (*left)->ordinal > (*right)->ordinal;
}

/* Copies the open sessions that sent most bytes. Returns how many. */
static uint32_t largest(const struct snapshot *snapshot, struct snapshot_session *out)
{
    const struct snapshot_session **list = calloc(snapshot->n_sessions + 1u, sizeof(*list));
    uint32_t n = 0;
    for (uint32_t i = 0; list && i < snapshot->n_sessions; i++)
        if (!snapshot->sessions[i].expired)
            list[n++] = &snapshot->sessions[i];
    if (list)
        qsort(list, n, sizeof(*list), by_bytes);
    n = n < METRICS_SESSIONS ? n : METRICS_SESSIONS;
    for (uint32_t i = 0; list && i < n; i++)
        out[i] = *list[i];
    free(list);
    return n;
}

/* Names of sessions need not be unique; with the ordinal they are. */
static void put_sessions(const struct writer *self, const struct snapshot *snapshot)
{
    struct snapshot_session *list = calloc(METRICS_SESSIONS, sizeof *list);
    struct rows rows = ROWS(list, list ? largest(snapshot, list) : 0);
    rows.labels = calloc(rows.n + 1u, sizeof(*rows.labels));
    self->out->failed |= !list || !rows.labels;
    for (uint32_t i = 0; rows.labels && !self->out->failed && i < rows.n; i++) {
        struct out label = {0};
        add_label(&label, "session", list[i].name);
        out_text(&label, ",ordinal=\"");
        out_u64(&label, list[i].ordinal);
        out_text(&label, "\"");
        rows.labels[i] = label_take(&label);
        self->out->failed |= !rows.labels[i];
    }
    if (!self->out->failed)
        put_fields(self, session_fields, &rows);
    rows_free(&rows);
    free(list);
}

static void put_named(const struct writer *self, const struct field *fields, struct rows rows, const char *label)
{
    rows_label(&rows, self->out, label, first_text);
    put_fields(self, fields, &rows);
    rows_free(&rows);
}

static void put_failures(const struct writer *self, const struct snapshot_server *server)
{
    put_head(self, "replay_replies_failed", "_total", "counter", "Replies with an error, by status.");
    for (uint32_t status = 1; status < SNAPSHOT_STATUSES; status++) {
        char label[64];
        snprintf(label, sizeof label, "status=\"%s\"", rp_status_name((int32_t)status));
        put_sample(self, "replay_replies_failed", "_total", label, NULL, (double)server->failed[status]);
    }
}

static void put_release(const struct writer *self, const struct snapshot_server *server)
{
    char label[64];
    snprintf(label, sizeof label, "version=\"%s\"", server->release);
    put_head(self, "replay_build_info", "", "gauge", "Always 1; the label has the version.");
    put_sample(self, "replay_build_info", "", label, NULL, 1);
}

static void put_threads(const struct writer *self, const struct threads *threads)
{
    struct rows rows = ROWS(threads->list, threads->n);
    rows_label(&rows, self->out, "thread", first_name);
    put_fields(self, thread_fields, &rows);
    rows_free(&rows);
    put_struct(self, process_fields, &threads->process);
}

/* Histograms of the broker as a whole. */
static void put_latencies(const struct writer *self, const struct snapshot *snapshot)
{
    const struct rows rows = {.base = (const char *)snapshot, .n = 1};
    put_histograms(self, "replay_insert_duration_seconds",
                   "From the arrival of a message until an item of it is in its table, waiting included.", &rows,
                   offsetof(struct snapshot, insert), &latency_scale);
    put_histograms(self, "replay_insert_wait_seconds", "The same, of items that did not go in at once.", &rows,
                   offsetof(struct snapshot, insert_wait), &latency_scale);
    put_histograms(self, "replay_journal_wait_seconds", "How long messages to clients waited for the journal.", &rows,
                   offsetof(struct snapshot, commit), &latency_scale);
}

void metrics_text(struct out *out, const struct snapshot *snapshot, const struct threads *threads,
                  const struct metrics_style *style)
{
    char shard[32];
    snprintf(shard, sizeof shard, "shard=\"%lld\"", (long long)style->shard);
    const struct writer self = {out, style->openmetrics, style->shard >= 0 ? shard : NULL};
    put_release(&self, &snapshot->server);
    put_struct(&self, server_fields, &snapshot->server);
    put_failures(&self, &snapshot->server);
    put_struct(&self, memory_fields, &snapshot->memory);
    if (snapshot->disk.on)
        put_struct(&self, disk_fields, &snapshot->disk);
    put_latencies(&self, snapshot);
    put_commands(&self, snapshot);
    put_tables(&self, snapshot);
    put_sessions(&self, snapshot);
    put_named(&self, slot_fields, (struct rows)ROWS(snapshot->slots, snapshot->n_slots), "slot");
    put_named(&self, counter_fields, (struct rows)ROWS(snapshot->counters, snapshot->n_counters), "name");
    put_threads(&self, threads);
    if (style->openmetrics)
        out_text(out, "# EOF\n");
}
