#include "broker/http/api.h"

#include <string.h>

#include "broker/http/fields.h"
#include "broker/http/metrics_text.h"
#include "replay/error.h"

static void put_object(struct json *out, const struct field *fields, const void *base)
{
    json_open(out, '{');
    fields_json(out, fields, base);
    json_close(out, '}');
}

static void put_list(struct json *out, const char *name, const struct field *fields, const void *base, size_t stride,
                     uint32_t n)
{
    json_key(out, name);
    json_open(out, '[');
    for (uint32_t i = 0; i < n; i++)
        put_object(out, fields, (const char *)base + i * stride);
    json_close(out, ']');
}

/* Counts in buckets that are not empty, as pairs of an upper bound and a count; and quantiles, each the bound of its bucket. */
static void put_histogram(struct json *out, const char *name, const struct histogram *histogram,
                          const struct histogram_scale *scale)
{
    json_key(out, name);
    json_open(out, '{');
    json_count(out, "count", histogram_count(histogram));
    json_real(out, "sum", histogram->sum / scale->per_unit);
    json_real(out, "p50", (double)histogram_quantile(histogram, 0.5) / scale->per_unit);
    json_real(out, "p90", (double)histogram_quantile(histogram, 0.9) / scale->per_unit);
    json_real(out, "p99", (double)histogram_quantile(histogram, 0.99) / scale->per_unit);
    json_key(out, "buckets");
    json_open(out, '[');
    for (uint32_t b = 0; b < HISTOGRAM_BUCKETS; b++) {
        if (!histogram->counts[b])
            continue;
        json_open(out, '[');
        json_number(out, (double)histogram_bound(b) / scale->per_unit);
        json_unsigned(out, histogram->counts[b]);
        json_close(out, ']');
    }
    json_close(out, ']');
    json_close(out, '}');
}

static void put_failures(struct json *out, const struct snapshot_server *server)
{
    json_key(out, "failed");
    json_open(out, '{');
    for (uint32_t status = 1; status < SNAPSHOT_STATUSES; status++)
        json_count(out, rp_status_name((int32_t)status), server->failed[status]);
    json_close(out, '}');
}

void api_info(struct json *out, const struct snapshot *snapshot, const struct threads *threads, int64_t now_ns)
{
    json_open(out, '{');
    json_key(out, "server");
    put_object(out, server_fields, &snapshot->server);
    json_key(out, "memory");
    put_object(out, memory_fields, &snapshot->memory);
    json_key(out, "disk");
    if (snapshot->disk.on)
        put_object(out, disk_fields, &snapshot->disk);
    else
        json_null(out);
    put_failures(out, &snapshot->server);
    put_list(out, "commands", command_fields, snapshot->commands, sizeof *snapshot->commands, snapshot->n_commands);
    json_key(out, "process");
    put_object(out, process_fields, &threads->process);
    put_list(out, "threads", thread_fields, threads->list, sizeof *threads->list, threads->n);
    json_key(out, "snapshot");
    json_open(out, '{');
    json_real(out, "age_s", (double)(now_ns - snapshot->made_ns) / 1e9);
    json_real(out, "cpu_s", (double)snapshot->cpu_ns / 1e9);
    json_close(out, '}');
    json_close(out, '}');
}

static void put_table(struct json *out, const struct snapshot_table *table)
{
    json_open(out, '{');
    fields_json(out, table_fields, table);
    put_histogram(out, "age", &table->age, &age_scale);
    put_histogram(out, "staleness", &table->staleness, &versions_scale);
    json_close(out, '}');
}

void api_tables(struct json *out, const struct snapshot *snapshot)
{
    json_open(out, '{');
    json_key(out, "tables");
    json_open(out, '[');
    for (uint32_t i = 0; i < snapshot->n_tables; i++)
        put_table(out, &snapshot->tables[i]);
    json_close(out, ']');
    json_close(out, '}');
}

bool api_table(struct json *out, const struct snapshot *snapshot, const char *name)
{
    for (uint32_t i = 0; i < snapshot->n_tables; i++)
        if (strcmp(snapshot->tables[i].name, name) == 0) {
            put_table(out, &snapshot->tables[i]);
            return true;
        }
    return false;
}

void api_sessions(struct json *out, const struct snapshot *snapshot)
{
    json_open(out, '{');
    json_key(out, "sessions");
    json_open(out, '[');
    for (uint32_t i = 0; i < snapshot->n_sessions; i++) {
        const struct snapshot_session *session = &snapshot->sessions[i];
        json_open(out, '{');
        fields_json(out, session_fields, session);
        put_list(out, "tables", flow_fields, session->flows, sizeof *session->flows, session->n_flows);
        json_close(out, '}');
    }
    json_close(out, ']');
    json_close(out, '}');
}

void api_why(struct json *out, const struct snapshot *snapshot)
{
    json_open(out, '{');
    put_list(out, "waits", wait_fields, snapshot->waits, sizeof *snapshot->waits, snapshot->n_waits);
    json_key(out, "more");
    json_boolean(out, snapshot->waits_cut);
    json_close(out, '}');
}

void api_params(struct json *out, const struct snapshot *snapshot)
{
    json_open(out, '{');
    put_list(out, "slots", slot_fields, snapshot->slots, sizeof *snapshot->slots, snapshot->n_slots);
    put_list(out, "counters", counter_fields, snapshot->counters, sizeof *snapshot->counters, snapshot->n_counters);
    json_close(out, '}');
}

void api_latency(struct json *out, const struct snapshot *snapshot)
{
    json_open(out, '{');
    put_histogram(out, "insert", &snapshot->insert, &latency_scale);
    put_histogram(out, "insert_wait", &snapshot->insert_wait, &latency_scale);
    put_histogram(out, "journal_wait", &snapshot->commit, &latency_scale);
    json_key(out, "requests");
    json_open(out, '{');
    for (uint32_t i = 0; i < snapshot->n_commands; i++) {
        json_key(out, snapshot->commands[i].name);
        json_open(out, '{');
        put_histogram(out, "duration", &snapshot->commands[i].latency, &latency_scale);
        put_histogram(out, "wait", &snapshot->commands[i].waited, &latency_scale);
        json_close(out, '}');
    }
    json_close(out, '}');
    json_close(out, '}');
}
