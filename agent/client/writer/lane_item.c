/* Items from the application's thread: made of steps, and handed to the I/O thread. */
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/client/writer/lane_wait.h"
#include "proto/base/error.h"

#define MESSAGE_SLACK 4096u

/* ---- handing items to the I/O thread */

/* Waits while the ring is full: the I/O thread never blocks, so there is room soon. Without a thread, the caller makes room. */
static void push(struct lane *self, const struct queued_item *item, struct step_chunk *evicted)
{
    struct timespec pause = {.tv_nsec = 20000};
    for (uint32_t tries = 0; !handoff_push(&self->handoff, item, evicted); tries++) {
        conn_wake(self->conn);
        conn_look(self->conn);
        if (tries < 100)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
    if (handoff_should_wake(&self->handoff))
        conn_wake(self->conn);
}

static struct step_chunk *take_evicted(struct lane *self)
{
    struct step_chunk *evicted = self->stream.evicted;
    self->stream.evicted = NULL;
    return evicted;
}

void lane_hand_evicted(struct lane *self)
{
    if (self->stream.evicted)
        push(self, &(struct queued_item){.chunk = NULL}, take_evicted(self));
}

static rp_status need_chunk(struct lane *self, struct step_chunk *chunk, rp_error *err)
{
    if (chunk != self->stream.open && !chunk->encoded) {
        RP_TRY(step_stream_encode(&self->stream, chunk, err));
        self->handed_bytes += chunk->size;
    }
    if (!chunk->needed)
        chunk->needed = true;
    return RP_OK;
}

rp_status lane_release(struct lane *self, rp_error *err)
{
    if (self->n_waiting == 0 || self->waiting_chunk == self->stream.open)
        return RP_OK;
    RP_TRY(need_chunk(self, self->waiting_chunk, err));
    for (uint32_t i = 0; i < self->n_waiting; i++)
        push(self, &self->waiting[i], i + 1 == self->n_waiting ? take_evicted(self) : NULL);
    self->n_waiting = 0;
    return RP_OK;
}

static rp_status await_chunk(struct lane *self, const struct queued_item *item, rp_error *err)
{
    if (self->n_waiting == self->waiting_capacity) {
        uint32_t capacity = self->waiting_capacity ? self->waiting_capacity * 2 : 64;
        struct queued_item *grown = realloc(self->waiting, capacity * sizeof *grown);
        if (!grown)
            return err_set(err, RP_NO_MEMORY, "no memory for an item");
        self->waiting = grown;
        self->waiting_capacity = capacity;
    }
    if (self->n_waiting == 0)
        self->waiting_chunk = self->stream.open;
    self->waiting[self->n_waiting++] = *item;
    return RP_OK;
}

/* ---- making items */

rp_status lane_table(struct lane *self, const char *name, uint32_t *out, rp_error *err)
{
    const struct conn_hello *hello = self->hello;
    if (!name)
        return err_set(err, RP_INVALID_ARGUMENT, "an item needs a table");
    *out = self->last_table;
    if (*out < hello->n_tables && strcmp(hello->tables[*out].name, name) == 0)
        return RP_OK;
    for (*out = 0; *out < hello->n_tables; ++*out)
        if (strcmp(hello->tables[*out].name, name) == 0) {
            self->last_table = *out;
            return RP_OK;
        }
    return conn_hello_no_table(hello, name, err);
}

rp_status lane_check_priority(double priority, rp_error *err)
{
    if (isfinite(priority) && priority >= 0)
        return RP_OK;
    return err_set(err, RP_INVALID_ARGUMENT, "a priority must be finite and not negative: %g", priority);
}

/* Links the chunks that hold `steps` steps from `first` on, and checks that they fit into one message. */
static rp_status need_chunks(struct lane *self, struct step_chunk *first, uint64_t steps, rp_error *err)
{
    uint64_t bytes = MESSAGE_SLACK;
    for (struct step_chunk *chunk = first;; chunk = step_stream_next(&self->stream, chunk)) {
        bytes += chunk->encoded ? chunk->size : self->stream.raw_bytes;
        if (steps <= chunk->length)
            break;
        steps -= chunk->length;
    }
    if (bytes > self->max_message_bytes)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "the item's chunks take %" PRIu64 " bytes, the broker takes at most %" PRIu64
                       " in one message: shorten the item, or raise max_message_bytes there",
                       bytes, self->max_message_bytes);
    return RP_OK;
}

/* Encodes those of the chunks that are complete. */
static rp_status encode_chunks(struct lane *self, struct step_chunk *first, uint64_t steps, bool *complete,
                               rp_error *err)
{
    for (struct step_chunk *chunk = first;; chunk = chunk->next) {
        RP_TRY(need_chunk(self, chunk, err));
        *complete = chunk != self->stream.open;
        if (steps <= chunk->length)
            return RP_OK;
        steps -= chunk->length;
    }
}

struct item_slices lane_slices(const struct lane *self, uint32_t table, const rp_slice *slices, uint32_t n)
{
    return (struct item_slices){&self->stream, &self->hello->tables[table], slices, n};
}

/* Makes an item of this layout that covers these steps. */
static rp_status make_item(struct lane *self, struct item_layout *layout, const struct item_steps *span,
                           double priority, uint64_t *key, rp_error *err)
{
    struct step_chunk *chunk = step_stream_find(&self->stream, span->first);
    struct queued_item item = {.chunk = chunk,
                               .layout = layout,
                               .priority = priority,
                               .policy = self->policy,
                               .mark = step_stream_mark(&self->stream),
                               .offset = (uint32_t)(span->first - chunk->step),
                               .length = span->length};
    bool complete = true;
    RP_TRY(need_chunks(self, chunk, (uint64_t)item.offset + item.length, err));
    RP_TRY(encode_chunks(self, chunk, (uint64_t)item.offset + item.length, &complete, err));
    if (lane_keys_left(self) == 0)
        return err_set(err, RP_RESOURCE_EXHAUSTED,
                       "all %" PRIu64 " keys of the writer's session are used up: flush, and try again",
                       self->key_count);
    item.key = self->key_base + self->keys_used;
    if (!complete || self->n_waiting > 0)
        RP_TRY(await_chunk(self, &item, err));
    else
        push(self, &item, take_evicted(self));
    self->created++;
    self->keys_used++;
    self->table_created[layout->table]++;
    if (key)
        *key = item.key;
    return RP_OK;
}

rp_status lane_make_item(struct lane *self, const struct item_slices *slices, double priority, uint64_t *key,
                         rp_error *err)
{
    uint32_t table = (uint32_t)(slices->table - self->hello->tables);
    struct item_layout *layout;
    struct item_steps span;
    RP_TRY(item_layouts_get(&self->layouts, slices, table, &layout, &span, err));
    return make_item(self, layout, &span, priority, key, err);
}

/* Checks what an item is made with, and waits for room. Gives the index of the table. */
static rp_status begin_item(struct lane *self, const char *table, double priority, int64_t timeout_ms, uint32_t *index,
                            rp_error *err)
{
    RP_TRY(lane_check_process(self, err));
    RP_TRY(lane_table(self, table, index, err));
    RP_TRY(lane_check_priority(priority, err));
    return lane_has_room(self, 1) ? RP_OK : lane_await_room(self, 1, timeout_ms, err);
}

rp_status lane_item(struct lane *writer, const char *table, double priority, const rp_slice *slices, uint32_t n_slices,
                    int64_t timeout_ms, uint64_t *key, rp_error *err)
{
    uint32_t index;
    RP_TRY(begin_item(writer, table, priority, timeout_ms, &index, err));
    struct item_slices item = lane_slices(writer, index, slices, n_slices);
    return lane_make_item(writer, &item, priority, key, err);
}

rp_status lane_check_item(struct lane *writer, const char *table, const rp_slice *slices, uint32_t n_slices,
                          rp_error *err)
{
    uint32_t index;
    RP_TRY(lane_check_process(writer, err));
    RP_TRY(lane_table(writer, table, &index, err));
    struct item_slices item = lane_slices(writer, index, slices, n_slices);
    return item_layouts_check(&writer->layouts, &item, err);
}

/* Gives the layout of the newest steps of all columns, and remembers it for the next item. */
static rp_status find_newest(struct lane *self, uint32_t table, uint32_t steps, struct item_layout **layout,
                             struct item_steps *span, rp_error *err)
{
    for (uint32_t i = 0; i < self->stream.n_columns; i++)
        self->all[i] = (rp_slice){.column = i, .start = -(int64_t)steps};
    struct item_slices item = lane_slices(self, table, self->all, self->stream.n_columns);
    RP_TRY(item_layouts_get(&self->layouts, &item, table, layout, span, err));
    self->layouts.newest[table] = (struct item_newest){*layout, steps};
    return RP_OK;
}

rp_status lane_item_last(struct lane *writer, const char *table, double priority, uint32_t steps, int64_t timeout_ms,
                         uint64_t *key, rp_error *err)
{
    uint32_t index;
    struct item_steps span;
    if (steps == 0)
        return err_set(err, RP_INVALID_ARGUMENT, "an item has at least one step");
    RP_TRY(begin_item(writer, table, priority, timeout_ms, &index, err));
    struct item_layout *layout = item_layouts_newest(&writer->layouts, &writer->stream, index, steps, &span);
    if (!layout)
        RP_TRY(find_newest(writer, index, steps, &layout, &span, err));
    return make_item(writer, layout, &span, priority, key, err);
}

void lane_set_policy(struct lane *writer, uint64_t version)
{
    writer->policy = version;
}
