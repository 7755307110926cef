/* Insert on sample: each sampled item is also inserted into another table. That table's limiter counts the insert but does not
 * hold it back. An item that the other table already has stays as it is. */
#include <stdlib.h>
#include <string.h>

#include "broker/extension/extension.h"
#include "proto/base/error.h"

struct copier {
    const rp_extension_host *host;
    char *table;
    double copied, skipped;
};

static void destroy(void *ctx)
{
    struct copier *self = ctx;
    free(self->table);
    free(self);
}

static void *create(const rp_option *options, uint32_t n_options, uint32_t capacity, const rp_extension_host *host,
                    rp_error *err)
{
    (void)capacity;
    if (n_options != 1 || strcmp(options[0].name, "table") != 0 || !options[0].value[0]) {
        err_set(err, RP_INVALID_ARGUMENT,
                "extension insert_on_sample takes one option: 'table', the name of another "
                "table that gets the sampled items");
        return NULL;
    }
    struct copier *self = calloc(1, sizeof *self);
    if (!self || !(self->table = strdup(options[0].value))) {
        free(self);
        err_set(err, RP_NO_MEMORY, "no memory for insert_on_sample");
        return NULL;
    }
    self->host = host;
    return self;
}

static void on_sample(void *ctx, const rp_item_view *item)
{
    struct copier *self = ctx;
    bool copied = self->host->copy_to(self->host->table, item->slot, self->table, item->priority);
    *(copied ? &self->copied : &self->skipped) += 1;
}

static void stats(void *ctx, void (*emit)(void *, const char *, double), void *to)
{
    const struct copier *self = ctx;
    emit(to, "copied", self->copied);
    emit(to, "not_copied", self->skipped);
}

const rp_extension_ops extension_insert_on_sample = {
    .name = "insert_on_sample",
    .create = create,
    .destroy = destroy,
    .on_sample = on_sample,
    .stats = stats,
};
