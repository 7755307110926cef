/* Memory of full tables, where the run knows more than the tables' signatures do. */
#include <math.h>
#include <stdlib.h>

#include "agent/config/config.h"
#include "broker/store/store.h"

/* The slab heap's classes. */
#define GRAIN 16.0

/* Rows that each item adds to the stream, because items share the others; and rows that an item spans. */
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

/* Bytes of an item of this run's own adder: its part of the chunks, with their headers, and its list of chunks. */
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
    return ceil(chunk / GRAIN) * GRAIN * added / length +
           (chunks > 1.0 ? (double)store_block_bytes((uint64_t)chunks * sizeof(void *)) : 0.0);
}

static double item_bytes(const struct run_config *self, const struct table_config *table, const rp_env_spec *spec)
{
    if (spec && self->actors.command.count == 0 && table == run_config_table(self))
        return adder_item_bytes(self, spec);
    return config_item_bytes(table);
}

double run_config_table_bytes(const struct run_config *self, const struct table_config *table, const rp_env_spec *spec)
{
    return config_table_bytes(table, item_bytes(self, table, spec));
}

void run_config_check_memory(const struct run_config *self, const rp_env_spec *spec, struct schema_report *report)
{
    const struct table_config *tables = self->broker.tables.data;
    uint32_t n = self->broker.tables.count;
    double *bytes = calloc(n ? n : 1, sizeof *bytes);
    for (uint32_t i = 0; bytes && i < n; i++)
        bytes[i] = item_bytes(self, &tables[i], spec);
    if (bytes)
        config_check_memory(&self->broker, bytes, "broker.", report);
    free(bytes);
}
