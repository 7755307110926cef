/* See sample_source.h. */
#include "agent/client/sampler/sample_source.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

bool sample_source_init(struct sample_source *self, struct conn *conn, const char *table,
                        const rp_sampler_options *options, uint32_t batches)
{
    struct batch_options decode = {.beta = options->beta, .max_bytes = options->max_bytes};
    *self = (struct sample_source){.conn = conn, .table = strdup(table), .options = *options};
    self->pool = batch_pool_new(batches);
    self->decoder = self->pool ? batch_decoder_new(self->pool, &decode) : NULL;
    return self->table && self->decoder;
}

void sample_source_fini(struct sample_source *self)
{
    batch_decoder_destroy(&self->decoder);
    batch_pool_unref(&self->pool);
    free(self->table);
}

uint32_t sample_source_count(const struct sample_source *self, uint64_t asked)
{
    uint64_t max = self->options.max_samples;
    if (self->stopped)
        return 0;
    if (max == 0)
        return self->options.batch_size;
    uint64_t left = asked < max ? max - asked : 0;
    return left < self->options.batch_size ? (uint32_t)left : self->options.batch_size;
}

uint64_t sample_source_request(const struct sample_source *self, uint32_t count, int64_t timeout_ms, conn_reply_fn *fn,
                               void *ctx)
{
    Replay__Sample body = REPLAY__SAMPLE__INIT;
    body.table = self->table;
    body.count = count;
    body.distinct = self->options.distinct != 0;
    body.flexible = self->options.flexible != 0;
    body.whole = self->options.whole != 0;
    body.paid = self->paid;
    if (timeout_ms >= 0) {
        body.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = (uint64_t)timeout_ms;
    }
    struct conn_message message = {.field = REPLAY__REQUEST__BODY_SAMPLE, .body = &body.base, .timeout_ms = -1};
    return conn_send(self->conn, &message, fn, ctx);
}

rp_status sample_source_decode(const struct sample_source *self, struct conn_reply *reply, uint32_t count,
                               rp_batch **batches, rp_error *err)
{
    RP_TRY(batch_decode_reply(self->decoder, reply, batches, err));
    uint64_t n = batch_list_items(*batches);
    if (n <= count)
        return RP_OK;
    batch_list_release(batches);
    return err_set(err, RP_BAD_MESSAGE, "%llu items came for a request of %u", (unsigned long long)n, count);
}

rp_batch *sample_source_take(struct sample_source *self, rp_batch **batches)
{
    rp_batch *batch = batch_list_take(batches);
    self->stats.batches++;
    self->stats.items += batch->info.n;
    return batch;
}

rp_status sample_source_timed_out(const struct sample_source *self, int64_t timeout_ms, const char *why, rp_error *err)
{
    char link[256];
    conn_describe(self->conn, link, sizeof link);
    return err_set(err, RP_DEADLINE_EXCEEDED, "no batch from table '%s' within %lld ms: %s", self->table,
                   (long long)timeout_ms, link[0] ? link : why);
}

rp_status sample_source_ended(const struct sample_source *self, rp_error *err)
{
    if (self->stopped)
        return err_set(err, RP_END_OF_STREAM, SAMPLE_STOPPED);
    return err_set(err, RP_END_OF_STREAM, "all of the %llu samples asked for were given",
                   (unsigned long long)self->options.max_samples);
}
