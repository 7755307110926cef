/* Item layouts on the writer's side: the slices of an item, relative to its first step, so that equal layouts are recognised
 * and registered with the broker once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/client/conn/conn.h"
#include "agent/client/writer/step_stream.h"
#include "replay/writer.h"

#define ITEM_LAYOUT_MAX_FIELDS 1024u
#define ITEM_LAYOUTS_MAX 65536u
#define ITEM_LAYOUT_BUCKETS 1024u

/* Immutable, except for the I/O thread's members. Lives as long as its writer. */
struct item_layout {
    struct item_layout *chain;
    uint64_t hash;
    uint32_t table; /* index into the HELLO's tables */
    uint8_t *wire;  /* the encoded Ingest.layouts field: tag, length, and the message with the id first */
    size_t wire_size, wire_id;
    /* I/O thread. A session numbers its layouts in the order in which they are sent. */
    uint64_t session; /* serial of the session that has it; 0: none */
    uint32_t id;
    uint32_t n_fields;
    Replay__Field fields[]; /* as they are sent: stride 0 is 1 */
};

/* The layout of items that hold the newest `steps` steps of all columns. */
struct item_newest {
    struct item_layout *layout; /* NULL: none was made */
    uint32_t steps;
};

struct item_layouts {
    struct item_layout **buckets; /* [ITEM_LAYOUT_BUCKETS] by hash */
    uint32_t count;
    struct item_layout **last;  /* [table] the layout used last */
    struct item_newest *newest; /* [table] of the last item of this kind */
    Replay__Field *scratch;     /* fields of the item being made */
    struct slice_range *ranges; /* its slices in steps of the stream */
    uint32_t scratch_size;
};

/* The steps of the stream that an item covers. */
struct item_steps {
    uint64_t first;
    uint32_t length;
};

/* I/O thread: sets the id in the encoded layout. */
void item_layout_number(struct item_layout *self, uint32_t id);

bool item_layouts_init(struct item_layouts *self, uint32_t n_tables);
void item_layouts_fini(struct item_layouts *self);

/* An item that an application asks for: slices of a stream, for a table. */
struct item_slices {
    const struct step_stream *stream;
    const Replay__TableSpec *table;
    const rp_slice *slices;
    uint32_t n;
};

/* Checks the slices against the table's signature alone, wherever they start. Count 0 stands for any number of steps. */
rp_status item_layouts_check(struct item_layouts *self, const struct item_slices *item, rp_error *err);

/* Checks the slices against the stream's window and the table's signature, and gives the layout and the steps covered.
 * `table` is the index of the table in the HELLO. The layout is borrowed. */
rp_status item_layouts_get(struct item_layouts *self, const struct item_slices *item, uint32_t table,
                           struct item_layout **layout, struct item_steps *span, rp_error *err);

/* The same for an item of the newest `steps` steps of all columns, if the table's last item of this kind had as many and the window
 * has them. NULL: item_layouts_get has to look; what it gives is remembered in newest. */
static inline struct item_layout *item_layouts_newest(const struct item_layouts *self, const struct step_stream *stream,
                                                      uint32_t table, uint32_t steps, struct item_steps *span)
{
    const struct item_newest *newest = &self->newest[table];
    uint64_t first = stream->steps - steps;
    if (newest->steps != steps || steps > step_stream_length(stream) || first < step_stream_reach(stream) ||
        first < stream->absent_step)
        return NULL;
    *span = (struct item_steps){first, steps};
    return newest->layout;
}
