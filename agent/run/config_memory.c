/* What full tables take of the broker's memory, and whether it is there. At the limit a broker removes items early, and
 * then lets writers wait: a table that can not reach its max_size is not the one that the user wrote down. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/run/config.h"
#include "broker/store.h"
#include "proto/dtype.h"

/* The slab heap's classes. */
#define GRAIN 16.0

/* Rows that each item adds to the stream, since items share the others; and rows that an item spans. */
static void adder_rows(const struct adder_config *adder, double *added, double *spanned)
{
    switch (adder->kind) {
    case ADDER_SEQUENCE:
        *added = (double)(adder->period < adder->length ? adder->period : adder->length);
        *spanned = (double)adder->length;
        break;
    case ADDER_EPISODE:
        *added = *spanned = (double)(adder->max_length + 1);
        break;
    default:
        *added = 1.0;
        *spanned = (double)(adder->n_step + 1);
        break;
    }
}

/* An item of this run's own adder: its part of the chunks, with their heads, and its list of them. */
static double adder_item_bytes(const struct run_config *self, const rp_env_spec *spec)
{
    const struct adder_config *adder = &self->adder;
    const struct agent_ops *ops = run_config_algorithm(self);
    double added, spanned, length = (double)(adder->chunk_length > 0 ? adder->chunk_length : 1);
    adder_rows(adder, &added, &spanned);
    bool sequence = adder->kind != ADDER_TRANSITION, log_prob = sequence && ops && ops->stores_log_prob;
    double row = (double)(env_observation_bytes(spec) + env_action_bytes(spec) + 2 * sizeof(float) +
                          (sequence ? sizeof(uint8_t) : 0) + (log_prob ? sizeof(float) : 0));
    double columns = 4.0 + sequence + log_prob;
    double chunk = sizeof(struct chunk) + columns * (sizeof(uint32_t) + sizeof(uint8_t)) + length * row;
    double chunks = ceil(spanned / length) + (length > 1.0 ? 1.0 : 0.0);
    return ceil(chunk / GRAIN) * GRAIN * added / length + (chunks > 1.0 ? chunks * sizeof(void *) : 0.0);
}

/* "next_observation" beside an "observation" of the same kind is the observation of another item. */
static bool is_shared(const struct table_config *table, const struct field_config *field)
{
    const struct field_config *fields = table->signature.data;
    if (!field->name || !field->dtype || strncmp(field->name, "next_", 5) != 0)
        return false;
    for (uint32_t i = 0; i < table->signature.count; i++)
        if (fields[i].name && strcmp(fields[i].name, field->name + 5) == 0 && fields[i].dtype &&
            strcmp(fields[i].dtype, field->dtype) == 0)
            return true;
    return false;
}

/* An item of somebody else's: what the signature says, each field once. */
static double signature_item_bytes(const struct table_config *table)
{
    const struct field_config *fields = table->signature.data;
    double sum = 0.0;
    for (uint32_t i = 0; i < table->signature.count; i++) {
        int32_t dtype = fields[i].dtype ? dtype_by_name(fields[i].dtype) : -1;
        const int64_t *shape = fields[i].shape.data;
        double bytes = dtype >= 0 ? (double)dtype_size(dtype) : 0.0;
        for (uint32_t d = 0; d < fields[i].shape.count; d++)
            bytes *= shape[d] > 0 ? (double)shape[d] : 1.0; /* any number of steps: at least one */
        if (!is_shared(table, &fields[i]))
            sum += bytes;
    }
    return sum;
}

static double item_bytes(const struct run_config *self, const struct table_config *table, const rp_env_spec *spec)
{
    if (spec && self->actors.command.count == 0 && table == run_config_table(self))
        return adder_item_bytes(self, spec);
    return signature_item_bytes(table);
}

/* Items that it may hold: in a queue only so many wait. */
static double most_items(const struct table_config *table)
{
    bool queue = table->limiter.kind == LIMITER_QUEUE || table->limiter.kind == LIMITER_STACK;
    double most = (double)table->max_size;
    return queue && table->limiter.size > 0 && table->limiter.size < most ? table->limiter.size : most;
}

double run_config_table_bytes(const struct run_config *self, const struct table_config *table, const rp_env_spec *spec)
{
    double bytes = most_items(table) * item_bytes(self, table, spec);
    return table->max_bytes > 0 && bytes > (double)table->max_bytes ? (double)table->max_bytes : bytes;
}

static const char *format_size(char out[32], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    uint32_t unit = 0;
    for (; bytes >= 1024.0 && unit < 6; unit++)
        bytes /= 1024.0;
    snprintf(out, 32, bytes < 10.0 && unit > 0 ? "%.1f%s" : "%.0f%s", bytes, units[unit]);
    return out;
}

/* The largest one is where something can be done. */
static void report_table(const struct run_config *self, uint32_t index, double need, double all,
                         const rp_env_spec *spec, struct schema_report *report)
{
    const struct table_config *table = (const struct table_config *)self->broker.tables.data + index;
    char path[64], each[32], own[32], sum[32], left[32], limit[32], with[64] = "";
    snprintf(path, sizeof path, "broker.tables[%u].%s", index, table->max_bytes > 0 ? "max_bytes" : "max_size");
    if (all > need)
        snprintf(with, sizeof with, " (%s with the other tables)", format_size(sum, all));
    schema_problem(report, path,
                   "%.0f items of %s need %s%s, and tables may take %s: broker.memory_limit %s less what is under way "
                   "(ingest_budget); write %smax_bytes, a smaller max_size, or a higher memory_limit",
                   most_items(table), format_size(each, item_bytes(self, table, spec)), format_size(own, need), with,
                   format_size(left, (double)(self->broker.memory_limit - config_ingest_budget(&self->broker))),
                   format_size(limit, (double)self->broker.memory_limit), table->max_bytes > 0 ? "a smaller " : "");
}

void run_config_check_memory(const struct run_config *self, const rp_env_spec *spec, struct schema_report *report)
{
    const struct table_config *tables = self->broker.tables.data;
    double all = 0.0, most = 0.0;
    uint32_t largest = 0;
    for (uint32_t i = 0; i < self->broker.tables.count; i++) {
        double bytes = run_config_table_bytes(self, &tables[i], spec);
        all += bytes;
        if (bytes > most) {
            most = bytes;
            largest = i;
        }
    }
    if (all > (double)(self->broker.memory_limit - config_ingest_budget(&self->broker)))
        report_table(self, largest, most, all, spec, report);
}
