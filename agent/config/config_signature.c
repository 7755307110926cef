/* The fields of a run's items, for the signature of its table: the broker rejects items with other fields, so that no actor's key can
 * insert what learners cannot read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/config.h"
#include "proto/base/dtype.h"

static bool fill(struct field_config *out, const struct adder_field *field)
{
    int64_t *shape = calloc(field->rank ? field->rank : 1, sizeof *shape);
    *out = (struct field_config){strdup(field->name), strdup(dtype_name(field->dtype)), {shape, field->rank}};
    for (uint32_t i = 0; shape && i < field->rank; i++)
        shape[i] = field->shape[i];
    return out->name && out->dtype && shape;
}

static void release(struct schema_list *signature)
{
    struct field_config *fields = signature->data;
    for (uint32_t i = 0; i < signature->count; i++) {
        free(fields[i].name);
        free(fields[i].dtype);
        free(fields[i].shape.data);
    }
    free(fields);
    *signature = (struct schema_list){0};
}

/* True if items with this field fit the file's signature. A length of 0 there fits any number of steps. */
static bool fits(const struct field_config *written, const struct adder_field *field)
{
    const int64_t *shape = written->shape.data;
    bool same = written->name && strcmp(written->name, field->name) == 0 && written->dtype &&
                dtype_by_name(written->dtype) == field->dtype && written->shape.count == field->rank;
    for (uint32_t i = 0; same && i < field->rank; i++)
        same = shape[i] == (int64_t)field->shape[i] || (i == 0 && shape[i] == 0);
    return same;
}

static void check(const struct run_config *self, const struct table_config *table, const struct adder_field *fields,
                  uint32_t n, struct schema_report *report)
{
    const struct field_config *written = table->signature.data;
    size_t index = (size_t)(table - (const struct table_config *)self->broker.tables.data);
    char path[64];
    uint32_t i = 0;
    while (i < n && i < table->signature.count && fits(&written[i], &fields[i]))
        i++;
    snprintf(path, sizeof path, "broker.tables[%zu].signature", index);
    if (i < n || i < table->signature.count)
        schema_problem(report, path,
                       "the items of environment and adder have %u fields, and field %u ('%s') does not fit: leave the "
                       "signature out, and it is made from them",
                       n, i, i < n ? fields[i].name : written[i].name);
}

bool run_config_prescribe(struct run_config *self, bool again, struct schema_report *report)
{
    struct table_config *table = (struct table_config *)(uintptr_t)run_config_table(self);
    const struct agent_ops *ops = run_config_algorithm(self);
    struct adder_field fields[ADDER_MAX_FIELDS];
    struct env env;
    if (!table || !self->actors.on || self->actors.command.count > 0 || !ops ||
        env_open(&env, &self->environment, NULL) != RP_OK)
        return true;
    const struct adder_options options = {
        .config = &self->adder, .spec = &env.spec, .with_log_prob = ops->stores_log_prob};
    uint32_t n = adder_fields(&options, fields, NULL);
    env_close(&env);
    if (n == 0)
        return true;
    if (table->signature.count > 0 && !again) {
        check(self, table, fields, n, report);
        return true;
    }
    release(&table->signature);
    struct field_config *signature = calloc(n, sizeof *signature);
    bool ok = signature != NULL;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = fill(&signature[i], &fields[i]);
    table->signature = (struct schema_list){signature, signature ? n : 0}; /* freed with the configuration */
    return ok;
}
