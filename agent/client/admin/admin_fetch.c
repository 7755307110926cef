/* Items by key: each shard is asked for its own, and their batches become one. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/admin/gather.h"
#include "agent/client/sampler/batch.h"
#include "proto/base/error.h"
#include "replay/admin.h"

#define MAX_BYTES (UINT64_C(4) << 30)

/* The keys by shard, and a question for each shard that has some. */
struct questions {
    Replay__Fetch *bodies;
    struct conn_message *messages;
    const struct conn_message **each; /* NULL: not asked */
    uint64_t *keys;
};

static void questions_fini(struct questions *self)
{
    free(self->bodies);
    free(self->messages);
    free((void *)self->each);
    free(self->keys);
}

/* Call questions_fini also after a failure. */
static bool questions_init(struct questions *self, rp_client *client, const Replay__Fetch *all, int64_t timeout_ms)
{
    uint32_t shards = client_shards(client);
    size_t used = 0;
    *self = (struct questions){.bodies = calloc(shards, sizeof *self->bodies),
                               .messages = calloc(shards, sizeof *self->messages),
                               .each = calloc(shards, sizeof *self->each),
                               .keys = malloc((all->n_key + 1) * sizeof *self->keys)};
    if (!self->bodies || !self->messages || !self->each || !self->keys)
        return false;
    for (uint32_t s = 0; s < shards; s++) {
        Replay__Fetch *body = &self->bodies[s];
        replay__fetch__init(body);
        body->table = all->table;
        body->key = self->keys + used;
        for (size_t i = 0; i < all->n_key; i++)
            if (client_shard_of(client, all->key[i]) == s)
                body->key[body->n_key++] = all->key[i];
        used += body->n_key;
        self->messages[s] =
            (struct conn_message){.field = REPLAY__REQUEST__BODY_FETCH, .body = &body->base, .timeout_ms = timeout_ms};
        self->each[s] = body->n_key ? &self->messages[s] : NULL;
    }
    return true;
}

/* ---- answers ---- */

struct joiner {
    struct batch_pool *pool;
    struct batch_decoder *decoder;
    struct rp_batch **lists; /* [shards] */
    struct batch_rows *rows;
    uint32_t n_rows;
};

static void joiner_fini(struct joiner *self, uint32_t shards)
{
    for (uint32_t i = 0; self->lists && i < shards; i++)
        batch_list_release(&self->lists[i]);
    free(self->lists);
    free(self->rows);
    batch_decoder_destroy(&self->decoder);
    batch_pool_unref(&self->pool);
}

static bool joiner_init(struct joiner *self, uint32_t shards)
{
    struct batch_options options = {.max_bytes = MAX_BYTES};
    *self = (struct joiner){.pool = batch_pool_new(0),
                            .lists = calloc(shards, sizeof *self->lists),
                            .rows = calloc(shards, sizeof *self->rows)};
    self->decoder = self->pool ? batch_decoder_new(self->pool, &options) : NULL;
    return self->decoder && self->lists && self->rows;
}

static rp_status check_one(struct rp_batch *list, rp_error *err)
{
    return list->next ? err_set(err, RP_FAILED_PRECONDITION, "%s; fetch those that fit together", list->text) : RP_OK;
}

static rp_status decode(struct joiner *self, struct gather_answer *answer, uint32_t shard, rp_error *err)
{
    struct rp_batch **list = &self->lists[shard];
    RP_TRY(batch_decode_reply(self->decoder, answer->reply, list, err));
    RP_TRY(check_one(*list, err));
    if ((*list)->info.n)
        self->rows[self->n_rows++] =
            (struct batch_rows){.from = *list, .n = (*list)->info.n, .share = 1, .shard = shard};
    return RP_OK;
}

/* Gives the one batch that has items, or all of them in one. */
static rp_status join(struct joiner *self, struct gather_answers *answers, rp_batch **out, rp_error *err)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < answers->n; i++) {
        if (!answers->of[i].asked)
            continue;
        RP_TRY(decode(self, &answers->of[i], i, err));
        if (self->lists[i]->info.n || !self->lists[last])
            last = i;
    }
    if (self->n_rows <= 1) {
        *out = self->lists[last];
        self->lists[last] = NULL;
        return RP_OK;
    }
    struct batch_join_options options = {.max_bytes = MAX_BYTES, .shards = true};
    RP_TRY(batch_join(self->pool, self->rows, self->n_rows, &options, out, err));
    rp_status status = (*out)->next
                           ? err_set(err, RP_FAILED_PRECONDITION,
                                     "the items do not all have the same fields; fetch those that fit together")
                           : RP_OK;
    if (status != RP_OK)
        batch_list_release(out);
    return status;
}

rp_status rp_admin_fetch(rp_client *client, const char *table, const uint64_t *keys, uint32_t n, int64_t timeout_ms,
                         rp_batch **out, rp_error *err)
{
    *out = NULL;
    if (!table || !keys || n == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "a table and at least one key are needed");
    Replay__Fetch all = REPLAY__FETCH__INIT;
    all.table = (char *)(uintptr_t)table;
    all.n_key = n;
    all.key = (uint64_t *)(uintptr_t)keys;
    struct questions questions;
    struct joiner joiner = {0};
    struct gather_answers *answers = NULL;
    rp_status status =
        questions_init(&questions, client, &all, timeout_ms) && joiner_init(&joiner, client_shards(client))
            ? RP_OK
            : err_set(err, RP_NO_MEMORY, "no memory to fetch %u items", n);
    struct gather_plan plan = {.each = questions.each, .want = REPLAY__REPLY__BODY__NOT_SET, .patient = true};
    if (status == RP_OK)
        status = gather(client, &plan, &answers, err);
    gather_explain(client, table, status, err);
    if (status == RP_OK)
        status = gather_all_good(answers, "have answered", err);
    if (status == RP_OK)
        status = join(&joiner, answers, out, err);
    gather_free(&answers);
    joiner_fini(&joiner, client_shards(client));
    questions_fini(&questions);
    return status;
}
