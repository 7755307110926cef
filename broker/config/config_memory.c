/* Memory that full tables take, against memory_limit. At the limit a table evicts early, or lets its writers wait: such a table
 * is not the one that the user wrote down. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/select/selector.h"
#include "proto/base/dtype.h"

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

double config_item_bytes(const struct table_config *table)
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

/* Most items that the table may hold: a queue is bounded by its size, too, and max_bytes holds so many of item_bytes. */
static double most_items(const struct table_config *table, double item_bytes)
{
    bool queue = table->limiter.kind == LIMITER_QUEUE || table->limiter.kind == LIMITER_STACK;
    double most = (double)table->max_size, bytes = (double)table->max_bytes;
    if (queue && table->limiter.size > 0 && table->limiter.size < most)
        most = table->limiter.size;
    return bytes > 0 && most * item_bytes > bytes ? floor(bytes / item_bytes) : most;
}

double config_item_overhead(const struct table_config *table)
{
    return (double)(CONFIG_RECORD_BYTES + CONFIG_KEY_BYTES + selector_slot_bytes(table->sampler.kind) +
                    selector_slot_bytes(table->remover.kind));
}

double config_table_bytes(const struct table_config *table, double item_bytes)
{
    if (table->max_bytes > 0 && item_bytes <= 0) /* that is what the user expects */
        return (double)table->max_bytes;
    return most_items(table, item_bytes) * (item_bytes + config_item_overhead(table));
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

/* Bytes that tables need. */
struct need {
    uint32_t index;     /* of the largest table, which is the one to change */
    double item, table; /* of that table: bytes of an item's data, of the full table */
    double all;         /* of all tables */
};

static void report_need(const struct broker_config *config, const struct need *need, const char *prefix,
                        struct schema_report *report)
{
    uint32_t index = need->index;
    const struct table_config *table = (const struct table_config *)config->tables.data + index;
    char path[64], each[32], own[32], sum[32], left[32], limit[32], with[64] = "", what[96] = "its max_bytes needs";
    snprintf(path, sizeof path, "%stables[%u].%s", prefix, index, table->max_bytes > 0 ? "max_bytes" : "max_size");
    if (need->item > 0)
        snprintf(what, sizeof what, "%.0f items of %s and %.0fB of overhead need", most_items(table, need->item),
                 format_size(each, need->item), config_item_overhead(table));
    else if (table->max_bytes == 0)
        snprintf(what, sizeof what, "%.0f items of %.0fB without any data need", most_items(table, 0.0),
                 config_item_overhead(table));
    if (need->all > need->table)
        snprintf(with, sizeof with, " (%s with the other tables)", format_size(sum, need->all));
    schema_problem(report, path,
                   "%s %s%s, and tables may take %s: %smemory_limit %s less ingest_budget; "
                   "write %smax_bytes, a smaller max_size, or a higher memory_limit",
                   what, format_size(own, need->table), with,
                   format_size(left, (double)(config->memory_limit - config_ingest_budget(config))), prefix,
                   format_size(limit, (double)config->memory_limit), table->max_bytes > 0 ? "a smaller " : "");
}

void config_check_memory(const struct broker_config *config, const double *item_bytes, const char *prefix,
                         struct schema_report *report)
{
    const struct table_config *tables = config->tables.data;
    struct need need = {0};
    if (config->storage_memory > 0) /* chunks that do not fit go to disk */
        return;
    for (uint32_t i = 0; i < config->tables.count; i++) {
        double item = item_bytes ? item_bytes[i] : config_item_bytes(&tables[i]);
        double bytes = config_table_bytes(&tables[i], item);
        need.all += bytes;
        if (bytes > need.table) {
            need.index = i;
            need.item = item;
            need.table = bytes;
        }
    }
    if (need.all > (double)(config->memory_limit - config_ingest_budget(config)))
        report_need(config, &need, prefix, report);
}
