#include "broker/program/metrics_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"
#include "proto/base/utf8.h"

/* ---- text: faster than printf, as a scrape has thousands of lines ---- */

static void out_bytes(struct text *self, const char *data, size_t size)
{
    if (self->capacity - self->size <= size) {
        self->capacity = (self->capacity + size + 4096) * 2;
        self->data = need_resize(self->data, self->capacity, 1);
    }
    memcpy(self->data + self->size, data, size);
    self->size += size;
    self->data[self->size] = '\0';
}

static void out_text(struct text *self, const char *text)
{
    out_bytes(self, text, strlen(text));
}

static void out_u64(struct text *self, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    out_bytes(self, digits + at, sizeof digits - at);
}

void metrics_real(struct text *self, double value)
{
    char text[40];
    if (isnan(value)) {
        out_text(self, "NaN");
    } else if (isinf(value)) {
        out_text(self, value > 0 ? "+Inf" : "-Inf");
    } else if (value >= 0 && value < 9e15 && value == floor(value)) {
        out_u64(self, (uint64_t)value);
    } else {
        int size = snprintf(text, sizeof text, "%.15g", value);
        out_bytes(self, text, (size_t)size);
    }
}

/* A label's value or a help text: escapes backslash, newline, and (in a value) the quote; bytes that are no UTF-8 become question
 * marks. */
static void out_escaped(struct text *self, const char *text, bool quoted)
{
    for (const char *s = text; *s;) {
        size_t plain = strcspn(s, quoted ? "\\\n\"" : "\\\n");
        size_t at = self->size;
        out_bytes(self, s, plain);
        utf8_clean(self->data + at, plain);
        s += plain;
        if (*s) {
            out_text(self, *s == '\n' ? "\\n" : *s == '"' ? "\\\"" : "\\\\");
            s++;
        }
    }
}

struct writer {
    struct text *out;
    bool openmetrics;
    const char *shard; /* label of all samples: shard="2"; NULL: the broker is alone */
};

/* Messages of one kind, each with its labels. */
struct rows {
    const struct figures *figures;
    const ProtobufCMessage *const *list;
    char **labels; /* name="value", escaped; NULL: no labels */
    size_t n;
};

/* ---- families ---- */

static void put_head(const struct writer *self, const char *name, const char *suffix, const char *type,
                     const char *help)
{
    /* OpenMetrics names a family without the suffix of its counter. */
    const char *shown = self->openmetrics ? "" : suffix;
    text_add(self->out, "# HELP %s%s ", name, shown);
    out_escaped(self->out, help, self->openmetrics);
    text_add(self->out, "\n# TYPE %s%s %s\n", name, shown, type);
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
    struct text *out = self->out;
    out_text(out, name);
    out_text(out, suffix);
    if (put_labels(self, labels, more))
        out_text(out, "}");
    out_text(out, " ");
    metrics_real(out, value);
    out_text(out, "\n");
}

/* ---- histograms ---- */

/* The bounds of a histogram as they are shown: the same for all elements of a list. */
struct bounds {
    const struct figure_scale *scale;
    char text[HISTOGRAM_BUCKETS][32];
};

void metrics_histogram(const struct figure *figure, const ProtobufCMessage *message, struct histogram *out)
{
    char sum[64];
    snprintf(sum, sizeof sum, "%s_sum", figure->name);
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, figure->name);
    const char *base = (const char *)message;
    size_t n = *(const size_t *)(const void *)(base + field->quantifier_offset);
    *out = (struct histogram){.sum = figure_value(&(struct figure){.name = sum}, message)};
    if (n)
        memcpy(out->counts, *(uint64_t *const *)(const void *)(base + field->offset), n * sizeof *out->counts);
}

static void put_histogram(const struct writer *self, const char *name, const char *labels,
                          const struct histogram *histogram, const struct bounds *bounds)
{
    struct text *out = self->out;
    const struct figure_scale *scale = bounds->scale;
    uint64_t below = 0, count = histogram_count(histogram);
    uint32_t next = 0;
    /* What never happened has no buckets but the last: most commands are never used. */
    for (uint32_t b = scale->first; count && b <= scale->last; b += scale->step) {
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
    put_sample(self, name, "_bucket", labels, "le=\"+Inf\"", (double)count);
    put_sample(self, name, "_sum", labels, NULL, histogram->sum / scale->per_unit);
    put_sample(self, name, "_count", labels, NULL, (double)count);
}

static void put_histograms(const struct writer *self, const struct figure *figure, const struct rows *rows)
{
    const struct figure_scale *scale = figure->scale;
    struct bounds bounds = {.scale = scale};
    struct histogram histogram;
    for (uint32_t b = scale->first; b <= scale->last; b += scale->step) {
        struct text out = {0};
        metrics_real(&out, (double)histogram_bound(b) / scale->per_unit);
        snprintf(bounds.text[b], sizeof bounds.text[b], "%.*s", (int)out.size, out.data);
        text_fini(&out);
    }
    put_head(self, figure->metric, "", "histogram", figure->help);
    for (size_t i = 0; i < rows->n; i++) {
        metrics_histogram(figure, rows->list[i], &histogram);
        put_histogram(self, figure->metric, rows->labels ? rows->labels[i] : NULL, &histogram, &bounds);
    }
}

/* ---- lists ---- */

/* Writes all metrics of a list. A list without elements has no metrics. */
static void put_rows(const struct writer *self, const struct rows *rows)
{
    const char *before = "";
    for (const struct figure *row = rows->figures->rows; rows->n && row->name; row++) {
        bool counts = row->type == FIGURE_COUNTER;
        const char *suffix = counts ? "_total" : "";
        if (row->type == FIGURE_HISTOGRAM)
            put_histograms(self, row, rows);
        if (row->type != FIGURE_COUNTER && row->type != FIGURE_GAUGE)
            continue;
        if (strcmp(before, row->metric) != 0)
            put_head(self, row->metric, suffix, counts ? "counter" : "gauge", row->help);
        before = row->metric;
        for (size_t i = 0; i < rows->n; i++)
            put_sample(self, row->metric, suffix, rows->labels ? rows->labels[i] : NULL, row->label,
                       figure_value(row, rows->list[i]));
    }
}

/* Makes a label from a text; ordinal NULL: without one. */
static char *label_new(const char *name, const char *value, const uint32_t *ordinal)
{
    struct text label = {0};
    text_add(&label, "%s=\"", name);
    out_escaped(&label, value, true);
    text_add(&label, "\"");
    if (ordinal)
        text_add(&label, ",ordinal=\"%u\"", *ordinal);
    return label.data;
}

/* Writes the metrics of messages that have the first field of each of `named` as their label. */
static void put_named(const struct writer *self, const struct figures *figures, void *list, void *named, size_t n)
{
    const ProtobufCMessage *const *names = named;
    struct rows rows = {figures, list, need_alloc((n + 1) * sizeof *rows.labels), n};
    for (size_t i = 0; i < n; i++) {
        const void *first = (const char *)names[i] + names[i]->descriptor->fields[0].offset;
        rows.labels[i] = label_new(figures->label, *(const char *const *)first, NULL);
    }
    put_rows(self, &rows);
    for (size_t i = 0; i < n; i++)
        free(rows.labels[i]);
    free(rows.labels);
}

static void put_list(const struct writer *self, const struct figures *figures, void *list, size_t n)
{
    put_named(self, figures, list, list, n);
}

static void put_one(const struct writer *self, const struct figures *figures, const ProtobufCMessage *message)
{
    put_rows(self, &(struct rows){.figures = figures, .list = &message, .n = message ? 1 : 0});
}

/* ---- sessions ---- */

static int by_bytes(const void *a, const void *b)
{
    const Replay__SessionInfo *const *left = a, *const *right = b;
    if ((*left)->received_bytes != (*right)->received_bytes)
        return (*left)->received_bytes < (*right)->received_bytes ? 1 : -1;
    return (*left)->ordinal < (*right)->ordinal ? -1 : (*left)->ordinal > (*right)->ordinal;
}

/* The open sessions that sent most bytes. Names of sessions need not be unique; with the ordinal they are. */
static void put_sessions(const struct writer *self, const Replay__InfoReply *info)
{
    Replay__SessionInfo **list = need_alloc((info->n_sessions + 1) * sizeof(*list));
    char *labels[METRICS_SESSIONS];
    size_t n = 0;
    for (size_t i = 0; i < info->n_sessions; i++)
        if (!info->sessions[i]->expired)
            list[n++] = info->sessions[i];
    qsort(list, n, sizeof(*list), by_bytes);
    n = n < METRICS_SESSIONS ? n : METRICS_SESSIONS;
    for (size_t i = 0; i < n; i++)
        labels[i] = label_new(session_figures.label, list[i]->name, &list[i]->ordinal);
    put_rows(self, &(struct rows){&session_figures, (const ProtobufCMessage *const *)list, labels, n});
    for (size_t i = 0; i < n; i++)
        free(labels[i]);
    free(list);
}

/* ---- all ---- */

static void put_tables(const struct writer *self, const Replay__InfoReply *info)
{
    Replay__LimiterInfo **limiters = need_alloc((info->n_tables + 1) * sizeof(*limiters));
    for (size_t i = 0; i < info->n_tables; i++)
        limiters[i] = info->tables[i]->limiter;
    put_list(self, &table_figures, info->tables, info->n_tables);
    put_named(self, &limiter_figures, limiters, info->tables, info->n_tables);
    free(limiters);
}

void metrics_text(struct text *out, const Replay__InfoReply *info, const struct metrics_style *style)
{
    char shard[32];
    const Replay__ServerInfo *server = info->server;
    snprintf(shard, sizeof shard, "shard=\"%lld\"", (long long)style->shard);
    const struct writer self = {out, style->openmetrics, style->shard >= 0 ? shard : NULL};
    char version[64];
    snprintf(version, sizeof version, "version=\"%s\"", server->release);
    put_head(&self, "replay_build_info", "", "gauge", "Always 1; the label has the version.");
    put_sample(&self, "replay_build_info", "", version, NULL, 1);
    put_one(&self, &server_figures, &server->base);
    put_list(&self, &status_figures, server->failed, server->n_failed);
    put_one(&self, &memory_figures, &server->memory->base);
    put_one(&self, &disk_figures, (const ProtobufCMessage *)info->disk);
    put_list(&self, &command_figures, server->commands, server->n_commands);
    put_tables(&self, info);
    put_sessions(&self, info);
    put_list(&self, &slot_figures, info->slots, info->n_slots);
    put_list(&self, &counter_figures, info->counters, info->n_counters);
    put_list(&self, &thread_figures, info->process->threads, info->process->n_threads);
    put_one(&self, &process_figures, &info->process->base);
    if (style->openmetrics)
        out_text(out, "# EOF\n");
}
