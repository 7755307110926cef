/* The public face of both kinds of sampler: options, and which kind they ask for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "agent/client/sampler/demand.h"
#include "agent/client/sampler/prefetch.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"

/* A longer time-out of the stream has no end. */
#define MOST_MS (INT64_MAX / NS_PER_MS / 4)
#define DEFAULT_MAX_BYTES (UINT64_C(4) << 30)

/* One of the two is set. */
struct rp_sampler {
    struct demand *demand;
    struct prefetch *prefetch;
};

static struct sample_source *source_of(rp_sampler *self)
{
    return self->demand ? demand_source(self->demand) : prefetch_source(self->prefetch);
}

static bool is_foreign(rp_sampler *self)
{
    return (self->demand || self->prefetch) && conn_is_foreign(source_of(self)->conn);
}

void rp_sampler_defaults(rp_sampler_options *options)
{
    rp_sampler_options defaults = {.struct_size = options->struct_size,
                                   .batch_size = 256,
                                   .in_flight = 4,
                                   .timeout_ms = -1,
                                   .max_bytes = DEFAULT_MAX_BYTES};
    size_t size = options->struct_size < sizeof defaults ? options->struct_size : sizeof defaults;
    memcpy(options, &defaults, size);
}

static rp_status check_options(const rp_sampler_options *options, const struct conn_hello *hello, rp_error *err)
{
    if (options->batch_size == 0 || (hello->max_batch && options->batch_size > hello->max_batch))
        return err_set(err, RP_INVALID_ARGUMENT, "batch_size is %u; it may be 1 to %u here", options->batch_size,
                       hello->max_batch);
    if (options->in_flight == 0 || options->in_flight > PREFETCH_MAX_IN_FLIGHT)
        return err_set(err, RP_INVALID_ARGUMENT, "in_flight is %u; it may be 1 to %u", options->in_flight,
                       PREFETCH_MAX_IN_FLIGHT);
    if (!isfinite(options->beta) || options->beta < 0)
        return err_set(err, RP_INVALID_ARGUMENT, "beta is %g; it must be 0 or more", options->beta);
    if (options->on_demand > 1)
        return err_set(err, RP_INVALID_ARGUMENT, "on_demand is %u; it may be 0 or 1", options->on_demand);
    if (options->on_demand && options->timeout_ms >= 0)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "timeout_ms is %lld with on_demand: give the time to rp_sampler_next instead",
                       (long long)options->timeout_ms);
    return RP_OK;
}

static rp_status read_options(struct conn *conn, const char *table, const rp_sampler_options *given,
                              rp_sampler_options *out, rp_error *err)
{
    *out = (rp_sampler_options){.struct_size = sizeof *out};
    rp_sampler_defaults(out);
    if (given) {
        if (given->struct_size < sizeof given->struct_size)
            return err_set(err, RP_INVALID_ARGUMENT, "struct_size of the options is not set");
        memcpy(out, given, given->struct_size < sizeof *out ? given->struct_size : sizeof *out);
    }
    if (out->max_bytes == 0)
        out->max_bytes = DEFAULT_MAX_BYTES;
    if (out->timeout_ms > MOST_MS)
        out->timeout_ms = -1;
    if (!table || strlen(table) > RP_MAX_NAME)
        return err_set(err, RP_INVALID_ARGUMENT, "a table's name has at most %u bytes", RP_MAX_NAME);
    struct conn_hello *hello = conn_hello_ref(conn);
    rp_status status =
        conn_hello_table(hello, table) ? check_options(out, hello, err) : conn_hello_no_table(hello, table, err);
    conn_hello_unref(&hello);
    return status;
}

rp_sampler *rp_sampler_new(rp_client *client, const char *table, const rp_sampler_options *options, rp_error *err)
{
    struct conn *conn = client_conn(client);
    rp_sampler_options checked;
    if (conn_check_process(conn, err) != RP_OK)
        return NULL;
    if (read_options(conn, table, options, &checked, err) != RP_OK)
        return NULL;
    rp_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler && checked.on_demand)
        sampler->demand = demand_new(conn, table, &checked);
    else if (sampler)
        sampler->prefetch = prefetch_new(conn, table, &checked);
    if (!sampler || (!sampler->demand && !sampler->prefetch)) {
        err_set(err, RP_NO_MEMORY, "no memory or no thread for a sampler");
        rp_sampler_destroy(&sampler);
    }
    return sampler;
}

void rp_sampler_destroy(rp_sampler **sampler)
{
    if (!sampler || !*sampler)
        return;
    if (!is_foreign(*sampler)) {
        demand_destroy(&(*sampler)->demand);
        prefetch_destroy(&(*sampler)->prefetch);
    }
    free(*sampler);
    *sampler = NULL;
}

rp_status rp_sampler_next(rp_sampler *sampler, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    *batch = NULL;
    RP_TRY(conn_check_process(source_of(sampler)->conn, err));
    struct trace *trace = conn_trace(source_of(sampler)->conn);
    int64_t start = trace_now(trace);
    rp_status status = sampler->demand ? demand_next(sampler->demand, batch, timeout_ms, err)
                                       : prefetch_next(sampler->prefetch, batch, timeout_ms, err);
    trace_add_since(trace, "wait for a sample", NULL, start, *batch ? (*batch)->info.n : 0);
    return status;
}

rp_status rp_sampler_post_buffers(rp_sampler *sampler, const rp_buffer *fields, uint32_t n, rp_error *err)
{
    struct sample_source *source = source_of(sampler);
    RP_TRY(conn_check_process(source->conn, err));
    return batch_pool_post(source->pool, fields, n, source->options.batch_size, err);
}

rp_status rp_sampler_get_stats(rp_sampler *sampler, rp_sampler_stats *out)
{
    uint32_t size = out->struct_size;
    rp_sampler_stats stats;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    RP_TRY(conn_check_process(source_of(sampler)->conn, NULL));
    if (sampler->demand)
        stats = demand_source(sampler->demand)->stats;
    else
        prefetch_get_stats(sampler->prefetch, &stats);
    stats.posted = batch_pool_posted(source_of(sampler)->pool);
    stats.struct_size = size;
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    return RP_OK;
}
