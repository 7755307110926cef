/* An example of a loadable table extension: "sample_decay" lowers the priority of an item each time it is sampled, so
 * that what was seen often makes room for what was not; and it copies an item to another table when it has been sampled
 * often enough.
 *
 * To make your own, copy this file, change what is in it, and build it against the public header only:
 *
 *     cc -std=c11 -O2 -fPIC -shared -I/usr/local/include my_extension.c -o my_extension.so
 *
 * Then name the object in the broker's configuration and use the extension like a built-in one:
 *
 *     plugins: [./my_extension.so]
 *     tables:
 *       - name: replay
 *         sampler: {kind: prioritized}
 *         extensions:
 *           - {kind: sample_decay, factor: 0.5, after: 4, archive: often}
 *       - name: often
 *
 * What the broker promises: hooks run on its one thread, inside the operation that they observe; a view is true at the
 * time of the call; calls through `host` run none of this extension's own hooks. What it expects: no hook blocks, and
 * none keeps a pointer past its return (the host's calls may be kept until destroy).
 *
 * All hooks are optional; this one leaves out on_update and on_delete. What `stats` emits is shown in the table's
 * information (replay-ctl info). */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay/plugin.h"

struct decay {
    const rp_extension_host *host;
    double factor;
    uint32_t after; /* samples; 0: never copy */
    char *archive;
    /* figures */
    double inserted, lowered, archived;
};

static void *fail(rp_error *err, rp_status status, const char *text, const char *value)
{
    if (err) {
        err->status = (int32_t)status;
        snprintf(err->text, sizeof err->text, text, value);
    }
    return NULL;
}

static void decay_destroy(void *state)
{
    struct decay *self = state;
    free(self->archive);
    free(self);
}

static bool read_option(struct decay *self, const rp_option *option)
{
    char *end = NULL;
    if (strcmp(option->name, "factor") == 0) {
        self->factor = strtod(option->value, &end);
        return *end == '\0' && self->factor > 0.0 && self->factor <= 1.0;
    }
    if (strcmp(option->name, "after") == 0) {
        self->after = (uint32_t)strtoul(option->value, &end, 10);
        return *end == '\0' && self->after > 0;
    }
    if (strcmp(option->name, "archive") == 0) {
        self->archive = strdup(option->value);
        return self->archive != NULL;
    }
    return false;
}

static void *decay_create(const rp_option *options, uint32_t n_options, uint32_t capacity,
                          const rp_extension_host *host, rp_error *err)
{
    (void)capacity;
    struct decay *self = calloc(1, sizeof *self);
    if (!self)
        return fail(err, RP_NO_MEMORY, "extension sample_decay: out of %s", "memory");
    self->host = host;
    self->factor = 0.5;
    for (uint32_t i = 0; i < n_options; i++)
        if (!read_option(self, &options[i])) {
            decay_destroy(self);
            return fail(
                err, RP_INVALID_ARGUMENT,
                "extension sample_decay: option '%s' is not understood; it takes factor (above 0, up to 1), after "
                "(a number of samples) and archive (a table)",
                options[i].name);
        }
    return self;
}

static void decay_on_insert(void *state, const rp_item_view *item)
{
    (void)item;
    ((struct decay *)state)->inserted++;
}

static void decay_on_sample(void *state, const rp_item_view *item)
{
    struct decay *self = state;
    self->lowered += self->host->set_priority(self->host->table, item->slot, item->priority * self->factor);
    if (self->archive && self->after && item->times_sampled == self->after)
        self->archived += self->host->copy_to(self->host->table, item->slot, self->archive, item->priority);
}

static void decay_on_reset(void *state)
{
    struct decay *self = state;
    self->inserted = self->lowered = self->archived = 0;
}

static void decay_stats(void *state, void (*emit)(void *ctx, const char *name, double value), void *ctx)
{
    const struct decay *self = state;
    emit(ctx, "decay_inserted", self->inserted);
    emit(ctx, "decay_lowered", self->lowered);
    emit(ctx, "decay_archived", self->archived);
}

static const rp_extension_ops sample_decay = {
    .name = "sample_decay",
    .create = decay_create,
    .destroy = decay_destroy,
    .on_insert = decay_on_insert,
    .on_sample = decay_on_sample,
    .on_reset = decay_on_reset,
    .stats = decay_stats,
};

static const rp_extension_ops *const extensions[] = {&sample_decay, NULL};

static const rp_plugin plugin = {
    .abi = RP_PLUGIN_ABI,
    .name = "extension_example",
    .extensions = extensions,
};

const rp_plugin *rp_plugin_entry(void)
{
    return &plugin;
}
