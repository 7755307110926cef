/* The public face of all kinds of sampler: options, and which kind they ask for. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/conn/client.h"
#include "agent/client/sampler/demand.h"
#include "agent/client/sampler/mixer.h"
#include "agent/client/sampler/prefetch.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"

/* A longer time-out of the stream has no end. */
#define MOST_MS (INT64_MAX / NS_PER_MS / 4)
#define DEFAULT_MAX_BYTES (UINT64_C(4) << 30)
#define MOST_BYTES (UINT64_MAX / 4) /* sums with it do not overflow */
#define MAX_SOURCES 64u

/* One of them is set. */
struct rp_sampler {
    struct demand *demand;
    struct prefetch *prefetch;
    struct mixer *mixer;
};

static struct conn *conn_of(rp_sampler *self)
{
    if (self->mixer)
        return mixer_conn(self->mixer);
    return self->demand ? demand_source(self->demand)->conn : prefetch_source(self->prefetch)->conn;
}

static struct batch_pool *pool_of(rp_sampler *self)
{
    if (self->mixer)
        return mixer_pool(self->mixer);
    return self->demand ? demand_source(self->demand)->pool : prefetch_source(self->prefetch)->pool;
}

static uint32_t batch_size_of(rp_sampler *self)
{
    if (self->mixer)
        return mixer_batch_size(self->mixer);
    return self->demand ? demand_source(self->demand)->options.batch_size
                        : prefetch_source(self->prefetch)->options.batch_size;
}

static bool is_foreign(rp_sampler *self)
{
    return (self->demand || self->prefetch || self->mixer) && conn_is_foreign(conn_of(self));
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
    if (out->max_bytes > MOST_BYTES)
        out->max_bytes = MOST_BYTES;
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

static rp_sampler *make_sampler(const rp_source *sources, uint32_t n, const rp_sampler_options *options, rp_error *err)
{
    rp_sampler *sampler = calloc(1, sizeof *sampler);
    struct conn *conn = client_conn(sources[0].client);
    err_set(err, RP_NO_MEMORY, "no memory or no thread for a sampler");
    if (sampler && (n > 1 || client_shards(sources[0].client) > 1))
        sampler->mixer = mixer_new(sources, n, options, err);
    else if (sampler && options->on_demand)
        sampler->demand = demand_new(conn, sources[0].table, options);
    else if (sampler)
        sampler->prefetch = prefetch_new(conn, sources[0].table, options);
    if (!sampler || (!sampler->demand && !sampler->prefetch && !sampler->mixer)) {
        rp_sampler_destroy(&sampler);
        return NULL;
    }
    if (err)
        *err = (rp_error){0};
    return sampler;
}

rp_sampler *rp_sampler_new(rp_client *client, const char *table, const rp_sampler_options *options, rp_error *err)
{
    rp_source source = {client, table, -1};
    return rp_sampler_new_mixed(&source, 1, options, err);
}

rp_sampler *rp_sampler_new_mixed(const rp_source *sources, uint32_t n, const rp_sampler_options *options, rp_error *err)
{
    rp_sampler_options checked = {0};
    if (n == 0 || n > MAX_SOURCES) {
        err_set(err, RP_INVALID_ARGUMENT, "a sampler has 1 to %u sources, not %u", MAX_SOURCES, n);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct conn *conn = client_conn(sources[i].client);
        if (conn_check_process(conn, err) != RP_OK ||
            read_options(conn, sources[i].table, options, &checked, err) != RP_OK)
            return NULL;
    }
    return make_sampler(sources, n, &checked, err);
}

void rp_sampler_destroy(rp_sampler **sampler)
{
    if (!sampler || !*sampler)
        return;
    if (!is_foreign(*sampler)) {
        demand_destroy(&(*sampler)->demand);
        prefetch_destroy(&(*sampler)->prefetch);
        mixer_destroy(&(*sampler)->mixer);
    }
    free(*sampler);
    *sampler = NULL;
}

rp_status rp_sampler_next(rp_sampler *sampler, rp_batch **batch, int64_t timeout_ms, rp_error *err)
{
    *batch = NULL;
    RP_TRY(conn_check_process(conn_of(sampler), err));
    struct trace *trace = conn_trace(conn_of(sampler));
    int64_t start = trace_now(trace);
    rp_status status;
    if (sampler->prefetch)
        status = prefetch_next(sampler->prefetch, batch, timeout_ms, err);
    else if (sampler->demand)
        status = demand_next(sampler->demand, batch, timeout_ms, err);
    else
        status = mixer_next(sampler->mixer, batch, timeout_ms, err);
    trace_add_since(trace, "wait for a sample", NULL, start, *batch ? (*batch)->info.n : 0);
    return status;
}

rp_status rp_sampler_stop(rp_sampler *sampler, rp_error *err)
{
    RP_TRY(conn_check_process(conn_of(sampler), err));
    if (sampler->prefetch)
        prefetch_stop(sampler->prefetch);
    else if (sampler->demand)
        demand_source(sampler->demand)->stopped = true;
    else
        mixer_stop(sampler->mixer);
    return RP_OK;
}

rp_status rp_sampler_post_buffers(rp_sampler *sampler, const rp_buffer *fields, uint32_t n, rp_error *err)
{
    RP_TRY(conn_check_process(conn_of(sampler), err));
    return batch_pool_post(pool_of(sampler), fields, n, batch_size_of(sampler), err);
}

rp_status rp_sampler_get_stats(rp_sampler *sampler, rp_sampler_stats *out)
{
    uint32_t size = out->struct_size;
    rp_sampler_stats stats;
    if (size < sizeof size)
        return RP_INVALID_ARGUMENT;
    RP_TRY(conn_check_process(conn_of(sampler), NULL));
    if (sampler->demand)
        stats = demand_source(sampler->demand)->stats;
    else if (sampler->mixer)
        mixer_get_stats(sampler->mixer, &stats);
    else
        prefetch_get_stats(sampler->prefetch, &stats);
    stats.posted = batch_pool_posted(pool_of(sampler));
    stats.struct_size = size;
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    return RP_OK;
}
