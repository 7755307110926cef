/* Steps from the application's thread, and the life of a lane. */
#include "agent/client/writer/lane.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/writer/lane_wait.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/trace.h"

#define BYE_FIELD 18
#define BYE_MS 2000

/* ---- steps */

/* Waits for room for the items that patterns may make, before the step is taken, so that a time-out changes nothing. */
static rp_status await_pattern_room(struct lane *self, uint32_t n, int64_t timeout_ms, rp_error *err)
{
    if (n == 0 || lane_has_room(self, n))
        return RP_OK;
    return lane_await_room(self, n, timeout_ms, err);
}

static rp_status finish_step(struct lane *self, rp_error *err)
{
    if (self->structured.with_values > 0)
        structured_look(&self->structured, &self->stream);
    RP_TRY(step_stream_end_step(&self->stream, err));
    rp_status status = RP_OK;
    if (self->structured.count > 0)
        status = structured_apply(self, false, err);
    if (self->n_waiting > 0) {
        rp_status released = lane_release(self, err);
        status = status == RP_OK ? released : status;
    }
    return status;
}

static inline __attribute__((always_inline)) rp_status append(struct lane *writer, const void *const *values,
                                                              int64_t timeout_ms, rp_error *err)
{
    struct step_stream *stream = &writer->stream;
    if (writer->structured.count == 0 && step_stream_is_whole(stream, values)) {
        RP_TRY(step_stream_append(stream, values, err));
        return writer->n_waiting > 0 ? lane_release(writer, err) : RP_OK;
    }
    RP_TRY(step_stream_check_step(stream, values, err));
    RP_TRY(await_pattern_room(writer, writer->structured.count, timeout_ms, err));
    for (uint32_t i = 0; i < stream->n_columns; i++)
        if (values[i])
            RP_TRY(step_stream_set(stream, i, values[i], stream->columns[i].row_bytes, err));
    return finish_step(writer, err);
}

/* Appends in the process of a fork, or while a trace is recorded. */
static __attribute__((noinline)) rp_status append_slowly(struct lane *writer, const void *const *values,
                                                         int64_t timeout_ms, rp_error *err)
{
    RP_TRY(lane_check_process(writer, err));
    int64_t start = trace_now(writer->trace);
    rp_status status = append(writer, values, timeout_ms, err);
    trace_add_since(writer->trace, "append", NULL, start, 1);
    return status;
}

/* Both calls are the last thing done here, so that a step pays a few tests and no frame for what is seldom the case. */
rp_status lane_append(struct lane *writer, const void *const *values, int64_t timeout_ms, rp_error *err)
{
    if (__builtin_expect(writer->forks != forks_count(), 0) || trace_on(writer->trace))
        return append_slowly(writer, values, timeout_ms, err);
    return append(writer, values, timeout_ms, err);
}

rp_status lane_set(struct lane *writer, uint32_t column, const void *value, uint64_t bytes, rp_error *err)
{
    RP_TRY(lane_check_process(writer, err));
    return step_stream_set(&writer->stream, column, value, bytes, err);
}

rp_status lane_row(struct lane *writer, uint32_t column, int64_t step, const void **row, rp_error *err)
{
    const struct step_stream *stream = &writer->stream;
    *row = NULL;
    RP_TRY(lane_check_process(writer, err));
    if (!stream->history)
        return err_set(err, RP_FAILED_PRECONDITION, "the writer keeps no history: set the option history");
    if (column >= stream->n_columns)
        return err_set(err, RP_INVALID_ARGUMENT, "there is no column %u, the stream has %u", column, stream->n_columns);
    uint64_t at = step < 0 ? stream->steps + (uint64_t)step : stream->episode_start + (uint64_t)step;
    if (at < step_stream_reach(stream) || at >= stream->steps)
        return err_set(err, RP_NOT_FOUND,
                       "step %" PRId64 " is not in the history, which has the last %" PRIu64 " of %" PRIu64
                       " steps of this episode",
                       step, stream->steps - step_stream_reach(stream), step_stream_length(stream));
    step_stream_row(stream, column, at, row);
    return RP_OK;
}

rp_status lane_end_step(struct lane *writer, int64_t timeout_ms, rp_error *err)
{
    RP_TRY(lane_check_process(writer, err));
    if (writer->stream.n_set == 0)
        return err_set(err, RP_FAILED_PRECONDITION, "no step has been begun");
    RP_TRY(await_pattern_room(writer, writer->structured.count, timeout_ms, err));
    return finish_step(writer, err);
}

rp_status lane_end_episode(struct lane *writer, int32_t mode, int64_t timeout_ms, rp_error *err)
{
    int64_t deadline = conn_deadline(timeout_ms);
    struct step_stream *stream = &writer->stream;
    RP_TRY(lane_check_process(writer, err));
    if (stream->n_set > 0)
        return err_set(err, RP_FAILED_PRECONDITION, "the episode ends inside a step: end the step first");
    if (step_stream_length(stream) > 0) {
        RP_TRY(await_pattern_room(writer, writer->structured.at_end, timeout_ms, err));
        RP_TRY(structured_apply(writer, true, err));
        RP_TRY(step_stream_cut(stream, err));
        RP_TRY(lane_release(writer, err));
        RP_TRY(step_stream_end_episode(stream, err));
        structured_reset(&writer->structured);
    }
    lane_hand_evicted(writer);
    return lanes_flush(&writer, 1, &(struct lane_flush){mode == RP_END_GO ? UINT64_MAX : 0, timeout_ms, deadline}, err);
}

/* ---- life */

static void lane_free(struct lane *self)
{
    if (self->attached)
        conn_detach(self->conn, &self->session.part);
    /* After the detach only this thread uses the I/O thread's half. */
    if (self->session.conn) {
        step_stream_abandon(&self->stream);
        outbox_take(&self->session.outbox);
        outbox_evict(&self->session.outbox, self->stream.evicted);
        self->stream.evicted = NULL;
        writer_session_fini(&self->session);
    }
    step_stream_fini(&self->stream);
    item_layouts_fini(&self->layouts);
    structured_fini(&self->structured);
    handoff_fini(&self->handoff);
    conn_hello_unref(&self->hello);
    free(self->all);
    free(self->table_created);
    free(self->waiting);
    free(self);
}

static rp_status lane_init(struct lane *self, const struct lane_options *options, rp_error *err)
{
    const rp_writer_options *writer = options->writer;
    self->conn = options->conn;
    self->trace = conn_trace(self->conn);
    self->forks = forks_count();
    self->hello = conn_hello_ref(self->conn);
    self->max_items = self->window = writer->max_in_flight_items;
    self->lanes = options->lanes;
    self->n_lanes = options->n_lanes;
    self->max_bytes = writer->max_in_flight_bytes;
    self->table_created = calloc(self->hello->n_tables + 1, sizeof *self->table_created);
    bool ok = handoff_init(&self->handoff, writer->batch_items, self->hello->n_tables);
    ok = item_layouts_init(&self->layouts, self->hello->n_tables) && ok;
    if (!ok || !self->table_created)
        return err_set(err, RP_NO_MEMORY, "no memory for a writer");
    RP_TRY(step_stream_init(&self->stream, options->columns, options->n_columns, writer->chunk_length,
                            writer->keep_alive, err));
    if (writer->history)
        RP_TRY(step_stream_keep_history(&self->stream, err));
    self->all = calloc(options->n_columns, sizeof *self->all);
    struct writer_session_options session = {.conn = self->conn,
                                             .handoff = &self->handoff,
                                             .stream = &self->stream,
                                             .hello = self->hello,
                                             .name = options->name,
                                             .doubt = writer->doubt};
    if (!self->all || !writer_session_init(&self->session, &session))
        return err_set(err, RP_NO_MEMORY, "no memory for a writer");
    return RP_OK;
}

struct lane *lane_new(const struct lane_options *options, rp_error *err)
{
    struct lane *self = aligned_alloc(CACHE_LINE, (sizeof *self + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    if (!self) {
        err_set(err, RP_NO_MEMORY, "no memory for a writer");
        return NULL;
    }
    memset(self, 0, sizeof *self);
    if (lane_init(self, options, err) != RP_OK) {
        lane_free(self);
        return NULL;
    }
    conn_attach(self->conn, &self->session.part);
    self->attached = true;
    return self;
}

void lane_drop(struct lane **self)
{
    if (*self)
        lane_free(*self);
    *self = NULL;
}

static void drop_reply(void *ctx, struct conn_reply *reply)
{
    (void)ctx;
    conn_reply_destroy(&reply);
}

/* All items are confirmed: if BYE is not answered, the session expires, and nothing is lost. So it is not waited for longer than
 * the caller wants. */
static void say_bye(struct conn *conn, struct conn_message *bye, int64_t left_ms)
{
    if (left_ms == 0) {
        conn_send(conn, bye, drop_reply, NULL);
        return;
    }
    bye->timeout_ms = left_ms > 0 && left_ms < BYE_MS ? left_ms : BYE_MS;
    conn_call(conn, bye, NULL, NULL);
}

void lane_destroy(struct lane **lane, int64_t deadline_ns)
{
    struct lane *self = *lane;
    *lane = NULL;
    if (conn_is_foreign(self->conn)) {
        free(self);
        return;
    }
    bool settled = atomic_load(&self->handoff.resolved) == self->created;
    conn_detach(self->conn, &self->session.part);
    self->attached = false;
    if (settled && conn_state(self->conn) == RP_CLIENT_CONNECTED) {
        Replay__Bye body = REPLAY__BYE__INIT;
        body.session = (ProtobufCBinaryData){WIRE_SESSION_BYTES, self->session.id};
        body.last_number = self->session.outbox.last_number;
        body.has_timeout_ms_case = REPLAY__BYE__HAS_TIMEOUT_MS_TIMEOUT_MS;
        body.timeout_ms = BYE_MS / 2;
        struct conn_message message = {.field = BYE_FIELD, .body = &body.base, .timeout_ms = BYE_MS};
        say_bye(self->conn, &message, conn_left_ms(deadline_ns));
    }
    lane_free(self);
}
