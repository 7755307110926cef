/* The fields of a run's items, for the signature of its table: the broker rejects items with other fields, so that no actor's key can
 * insert what learners cannot read. */
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

bool run_config_prescribe(struct run_config *self)
{
    struct table_config *table = (struct table_config *)(uintptr_t)run_config_table(self);
    const struct agent_ops *ops = run_config_algorithm(self);
    struct adder_field fields[ADDER_MAX_FIELDS];
    struct env env;
    if (!table || table->signature.count > 0 || !self->actors.on || self->actors.command.count > 0 || !ops ||
        env_open(&env, &self->environment, NULL) != RP_OK)
        return true;
    const struct adder_options options = {
        .config = &self->adder, .spec = &env.spec, .with_log_prob = ops->stores_log_prob};
    uint32_t n = adder_fields(&options, fields, NULL);
    env_close(&env);
    struct field_config *signature = calloc(n ? n : 1, sizeof *signature);
    bool ok = signature != NULL;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = fill(&signature[i], &fields[i]);
    table->signature = (struct schema_list){signature, signature ? n : 0}; /* freed with the configuration */
    return ok;
}
