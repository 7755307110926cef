/* Cuts the stream of items into batches of at most so many steps. See tokens.h. */
#include "agent/client/sampler/tokens.h"

#include <stdlib.h>

#include "proto/base/error.h"

struct tokens {
    uint64_t most; /* steps of a batch */
    uint32_t unit; /* items of a group, which stay together; without groups 1 */
    struct batch_join_options options;
    struct batch_pool *pool;
    struct rp_batch *ready; /* made and not given: of items whose fields do not fit into one array */
    /* The batches that came in and have items left. .first: its first item of the next batch; .n: how many it gives. */
    struct batch_pieces in;
    uint64_t steps; /* of the items of the next batch */
    bool full;
};

struct tokens *tokens_new(const rp_sampler_options *options, uint32_t unit)
{
    struct tokens *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->most = options->tokens;
    self->unit = unit;
    self->options = (struct batch_join_options){.beta = options->beta, .max_bytes = options->max_bytes, .packed = true};
    self->pool = batch_pool_new(2 + options->in_flight, &options->memory);
    if (!self->pool)
        tokens_destroy(&self);
    return self;
}

static void release(struct batch_rows *in)
{
    rp_batch *batch = (rp_batch *)(uintptr_t)in->from;
    rp_batch_release(&batch);
}

void tokens_destroy(struct tokens **self)
{
    struct tokens *tokens = *self;
    *self = NULL;
    if (!tokens)
        return;
    for (uint32_t i = 0; i < tokens->in.n; i++)
        release(&tokens->in.rows[i]);
    batch_list_release(&tokens->ready);
    batch_pool_unref(&tokens->pool);
    free(tokens->in.rows);
    free(tokens);
}

/* Returns the steps of an item: those of its longest field, and 1 if no field has steps. */
static uint64_t item_steps(const struct rp_batch *batch, uint32_t item)
{
    uint32_t most = 1;
    for (uint32_t f = 0; f < batch->info.n_fields; f++) {
        const uint32_t *lengths = batch->fields[f].lengths;
        most = lengths && lengths[item] > most ? lengths[item] : most;
    }
    return most;
}

/* Adds items of a batch to the next batch while they fit. */
static void fill(struct tokens *self, struct batch_rows *in)
{
    while (!self->full && in->first + in->n < in->from->info.n) {
        uint32_t n = 1, first = in->first + in->n;
        uint64_t steps = item_steps(in->from, first);
        const uint64_t *group = in->from->arrays.group;
        for (; group && n < self->unit && first + n < in->from->info.n && group[first + n] == group[first]; n++)
            steps += item_steps(in->from, first + n);
        self->full = self->steps && self->steps + steps > self->most;
        if (self->full)
            return;
        self->steps += steps;
        in->n += n;
    }
}

rp_status tokens_add(struct tokens *self, rp_batch **batch, rp_error *err)
{
    if ((*batch)->info.n == 0) {
        rp_batch_release(batch);
        return RP_OK;
    }
    if (!batch_pieces_add(&self->in, &(struct batch_rows){.from = *batch, .share = 1})) {
        rp_batch_release(batch);
        return err_set(err, RP_NO_MEMORY, "no memory to put a batch together");
    }
    *batch = NULL;
    fill(self, &self->in.rows[self->in.n - 1]);
    return RP_OK;
}

bool tokens_full(const struct tokens *self)
{
    return self->full || self->ready;
}

bool tokens_empty(const struct tokens *self)
{
    return !self->steps && !self->ready;
}

/* Begins the next batch with the items that are left. */
static void advance(struct tokens *self)
{
    uint32_t kept = 0;
    self->steps = 0;
    self->full = false;
    for (uint32_t i = 0; i < self->in.n; i++) {
        struct batch_rows in = self->in.rows[i];
        in.first += in.n;
        in.n = 0;
        if (in.first == in.from->info.n)
            release(&in);
        else
            self->in.rows[kept++] = in;
    }
    self->in.n = kept;
    for (uint32_t i = 0; i < self->in.n; i++)
        fill(self, &self->in.rows[i]);
}

rp_status tokens_take(struct tokens *self, rp_batch **out, rp_error *err)
{
    if (!self->ready) {
        uint32_t n = 0;
        while (n < self->in.n && self->in.rows[n].n)
            n++;
        const struct rp_batch *last = self->in.rows[n - 1].from;
        self->options.sources = last->arrays.source != NULL;
        self->options.shards = last->arrays.shard != NULL;
        RP_TRY(batch_join(self->pool, self->in.rows, n, &self->options, &self->ready, err));
        for (struct rp_batch *made = self->ready; made; made = made->next) {
            made->info.table_size = last->info.table_size;
            made->info.partial = !self->full || self->ready->next;
            if (made->info.partial && !made->text[0])
                batch_set_text(made, last->text, strlen(last->text));
        }
        advance(self);
    }
    *out = batch_list_take(&self->ready);
    return RP_OK;
}
