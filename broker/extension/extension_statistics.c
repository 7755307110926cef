/* Statistics of inserted, sampled and removed items: lengths, priorities, ages, and how often items are sampled before they leave. */
#include <stdlib.h>

#include "broker/extension/extension.h"
#include "proto/base/error.h"

struct statistics {
    double inserted, insert_priority, insert_length, insert_bytes;
    double sampled, sample_priority, sample_age_s;
    double updated, update_change;
    double deleted, deleted_unused, deleted_uses;
};

static void *create(const rp_option *options, uint32_t n_options, uint32_t capacity, const rp_extension_host *host,
                    rp_error *err)
{
    (void)capacity;
    (void)host;
    if (n_options) {
        err_set(err, RP_INVALID_ARGUMENT, "extension statistics has no option '%s'", options[0].name);
        return NULL;
    }
    return calloc(1, sizeof(struct statistics));
}

static void on_insert(void *ctx, const rp_item_view *item)
{
    struct statistics *self = ctx;
    self->inserted++;
    self->insert_priority += item->priority;
    self->insert_length += item->length;
    self->insert_bytes += (double)item->bytes;
}

static void on_sample(void *ctx, const rp_item_view *item)
{
    struct statistics *self = ctx;
    self->sampled++;
    self->sample_priority += item->priority;
    self->sample_age_s += (double)item->age_ns * 1e-9;
}

static void on_update(void *ctx, const rp_item_view *item, double old_priority)
{
    struct statistics *self = ctx;
    double change = item->priority - old_priority;
    self->updated++;
    self->update_change += change < 0 ? -change : change;
}

static void on_delete(void *ctx, const rp_item_view *item)
{
    struct statistics *self = ctx;
    self->deleted++;
    self->deleted_unused += item->times_sampled == 0;
    self->deleted_uses += item->times_sampled;
}

static void on_reset(void *ctx)
{
    *(struct statistics *)ctx = (struct statistics){0};
}

static double mean(double sum, double n)
{
    return n > 0 ? sum / n : 0;
}

static void stats(void *ctx, void (*emit)(void *, const char *, double), void *to)
{
    const struct statistics *self = ctx;
    emit(to, "inserted", self->inserted);
    emit(to, "mean_insert_priority", mean(self->insert_priority, self->inserted));
    emit(to, "mean_insert_length", mean(self->insert_length, self->inserted));
    emit(to, "mean_insert_bytes", mean(self->insert_bytes, self->inserted));
    emit(to, "sampled", self->sampled);
    emit(to, "mean_sample_priority", mean(self->sample_priority, self->sampled));
    emit(to, "mean_sample_age_s", mean(self->sample_age_s, self->sampled));
    emit(to, "updated", self->updated);
    emit(to, "mean_update_change", mean(self->update_change, self->updated));
    emit(to, "deleted", self->deleted);
    emit(to, "deleted_never_sampled", self->deleted_unused);
    emit(to, "mean_samples_when_deleted", mean(self->deleted_uses, self->deleted));
}

const rp_extension_ops extension_statistics = {
    .name = "statistics",
    .create = create,
    .destroy = free,
    .on_insert = on_insert,
    .on_sample = on_sample,
    .on_update = on_update,
    .on_delete = on_delete,
    .on_reset = on_reset,
    .stats = stats,
};
