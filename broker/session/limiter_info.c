#include "broker/session/limiter_info.h"

#include "broker/session/pump.h"

void limiter_info(const struct table *table, struct limiter_info *out)
{
    const struct limiter *limiter = &table->limiter;
    replay__limiter_info__init(&out->body);
    out->body.kind = (char *)(uintptr_t)limiter_kind_name(limiter->kind);
    out->body.samples_per_insert = limiter->samples_per_insert;
    out->body.min_size = limiter->min_size_part;
    out->body.min_diff = limiter->min_diff;
    out->body.max_diff = limiter->max_diff;
    out->body.inserts = limiter->inserts;
    out->body.samples = limiter->samples;
    out->body.deletes = limiter->deletes;
    out->body.cursor = limiter_cursor(limiter);
    out->inserts_wait[0] = out->samples_wait[0] = '\0';
    pump_explain_insert(table, out->inserts_wait, sizeof out->inserts_wait);
    limiter_explain_sample(limiter, 1, out->samples_wait, sizeof out->samples_wait);
    out->body.inserts_wait = out->inserts_wait;
    out->body.samples_wait = out->samples_wait;
}
