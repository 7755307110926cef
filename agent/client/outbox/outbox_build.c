/* Makes ingest messages: chooses the items that fit and the chunks that they need, and makes the frames. */
#include <stdlib.h>
#include <string.h>

#include "agent/client/outbox/outbox_impl.h"

/* Upper bounds on bytes in a header. */
#define HEADER_BASE 256u
#define HEADER_ITEM 36u
#define HEADER_RUN 24u
#define HEADER_CHUNK 24u
#define HEADER_BLOCK 5u
/* Largest block for the headers of full messages, and how much of unused blocks is kept; other headers are allocated one by one. */
#define HEADER_MOST ((size_t)64 << 10)
#define HEADER_KEEP_BYTES ((size_t)1 << 20)

/* Half of the span of chunk numbers that the broker keeps; a larger jump is announced. */
#define CHUNK_SPAN (UINT64_C(1) << 20)
#define CHUNK_JUMP (UINT64_C(1) << 19)

struct outbox_scratch {
    uint32_t batch_items;
    uint32_t n_items, n_runs, n_chunks;
    uint64_t lowest; /* number of the oldest chunk that an item refers to */
    struct pool *headers;
    size_t header_bytes;                                 /* of a block of that pool */
    uint64_t *key, *item_chunk, *run_first, *run_policy; /* [batch_items] */
    double *priority;
    uint32_t *offset, *length, *run_layout, *run_items;
    struct item_layout **new_layouts; /* to be registered */
    uint32_t n_new_layouts;
    uint32_t chunk_capacity;
    struct step_chunk **chunks; /* [chunk_capacity] */
    uint64_t *chunk_number, *chunk_step;
    uint32_t *chunk_length, *chunk_episode;
    uint32_t block_capacity;
    uint32_t *block_size; /* [block_capacity] */
    uint8_t *block_codec;
    struct pb_writer layouts; /* the same, encoded */
};

/* Returns the most bytes that a header takes. */
static size_t header_bound(uint64_t items, uint64_t runs, uint64_t chunks, uint32_t n_columns)
{
    return HEADER_BASE + items * HEADER_ITEM + runs * HEADER_RUN +
           chunks * (HEADER_CHUNK + (size_t)HEADER_BLOCK * n_columns);
}

struct outbox_scratch *outbox_scratch_new(uint32_t n, uint32_t n_columns)
{
    struct outbox_scratch *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    self->batch_items = n;
    self->header_bytes = header_bound(n, 1, n, n_columns);
    if (self->header_bytes > HEADER_MOST)
        self->header_bytes = HEADER_MOST;
    self->headers = pool_new(self->header_bytes, HEADER_KEEP_BYTES);
    self->key = malloc(n * sizeof *self->key);
    self->item_chunk = malloc(n * sizeof *self->item_chunk);
    self->run_first = malloc(n * sizeof *self->run_first);
    self->run_policy = malloc(n * sizeof *self->run_policy);
    self->priority = malloc(n * sizeof *self->priority);
    self->offset = malloc(n * sizeof *self->offset);
    self->length = malloc(n * sizeof *self->length);
    self->run_layout = malloc(n * sizeof *self->run_layout);
    self->run_items = malloc(n * sizeof *self->run_items);
    self->new_layouts = malloc(n * sizeof(*self->new_layouts));
    if (!self->headers || !self->key || !self->item_chunk || !self->run_first || !self->run_policy || !self->priority ||
        !self->offset || !self->length || !self->run_layout || !self->run_items || !self->new_layouts)
        outbox_scratch_destroy(&self);
    return self;
}

void outbox_scratch_destroy(struct outbox_scratch **self_p)
{
    struct outbox_scratch *self = *self_p;
    if (!self)
        return;
    pool_destroy(&self->headers);
    free(self->key);
    free(self->item_chunk);
    free(self->run_first);
    free(self->run_policy);
    free(self->priority);
    free(self->offset);
    free(self->length);
    free(self->run_layout);
    free(self->run_items);
    free(self->new_layouts);
    free(self->chunks);
    free(self->chunk_number);
    free(self->chunk_step);
    free(self->chunk_length);
    free(self->chunk_episode);
    free(self->block_size);
    free(self->block_codec);
    pb_writer_fini(&self->layouts);
    free(self);
    *self_p = NULL;
}

static bool grow(void **array, size_t bytes)
{
    void *grown = realloc(*array, bytes);
    if (grown)
        *array = grown;
    return grown != NULL;
}

static bool scratch_room(struct outbox_scratch *self, uint32_t n_chunks, uint32_t n_columns)
{
    if (n_chunks > self->chunk_capacity) {
        uint32_t n = n_chunks < 64 ? 64 : n_chunks * 2;
        if (!grow((void **)&self->chunks, n * sizeof(*self->chunks)) ||
            !grow((void **)&self->chunk_number, n * sizeof(uint64_t)) ||
            !grow((void **)&self->chunk_step, n * sizeof(uint64_t)) ||
            !grow((void **)&self->chunk_length, n * sizeof(uint32_t)) ||
            !grow((void **)&self->chunk_episode, n * sizeof(uint32_t)))
            return false;
        self->chunk_capacity = n;
    }
    uint64_t blocks = (uint64_t)n_chunks * n_columns;
    if (blocks > UINT32_MAX / 2)
        return false;
    if (blocks > self->block_capacity) {
        uint32_t n = blocks < 64 ? 64 : (uint32_t)blocks * 2;
        if (!grow((void **)&self->block_size, n * sizeof(uint32_t)) || !grow((void **)&self->block_codec, n))
            return false;
        self->block_capacity = n;
    }
    return true;
}

/* ---- which items and chunks */

static bool is_sent(const struct outbox *self, const struct step_chunk *chunk)
{
    return chunk->message && chunk->message->session == self->serial;
}

/* Computes the bytes and chunks that an item adds to the message. */
static size_t item_cost(const struct outbox *self, const struct queued_item *item, uint32_t *n_chunks)
{
    size_t bytes = HEADER_ITEM + HEADER_RUN;
    uint64_t left = (uint64_t)item->offset + item->length;
    for (const struct step_chunk *chunk = item->chunk;; chunk = chunk->next) {
        if (!is_sent(self, chunk) && chunk->picked != self->builds) {
            bytes += chunk->size + HEADER_CHUNK + (size_t)HEADER_BLOCK * self->n_columns;
            (*n_chunks)++;
        }
        if (left <= chunk->length)
            break;
        left -= chunk->length;
    }
    if (item->layout->session != self->serial)
        bytes += item->layout->wire_size;
    return bytes;
}

static void pick_chunks(struct outbox *self, const struct queued_item *item)
{
    struct outbox_scratch *s = self->scratch;
    uint64_t left = (uint64_t)item->offset + item->length;
    for (struct step_chunk *chunk = item->chunk;; chunk = chunk->next) {
        if (!is_sent(self, chunk) && chunk->picked != self->builds) {
            chunk->picked = self->builds;
            uint32_t at = s->n_chunks++;
            for (; at > 0 && s->chunks[at - 1]->number > chunk->number; at--)
                s->chunks[at] = s->chunks[at - 1];
            s->chunks[at] = chunk;
        }
        if (left <= chunk->length)
            return;
        left -= chunk->length;
    }
}

static void pick_item(struct outbox *self, const struct queued_item *item, uint64_t number)
{
    struct outbox_scratch *s = self->scratch;
    uint32_t i = s->n_items++, run = s->n_runs;
    if (item->layout->session != self->serial) {
        item->layout->session = self->serial;
        item_layout_number(item->layout, self->n_layouts++);
        s->new_layouts[s->n_new_layouts++] = item->layout;
    }
    s->key[i] = item->key;
    s->priority[i] = item->priority;
    s->item_chunk[i] = item->chunk->number;
    s->lowest = s->item_chunk[i] < s->lowest ? s->item_chunk[i] : s->lowest;
    s->offset[i] = item->offset;
    s->length[i] = item->length;
    if (run > 0 && s->run_layout[run - 1] == item->layout->id && s->run_policy[run - 1] == item->policy) {
        s->run_items[run - 1]++;
        return;
    }
    s->run_layout[run] = item->layout->id;
    s->run_policy[run] = item->policy;
    s->run_first[run] = number;
    s->run_items[run] = 1;
    s->n_runs++;
}

/* Picks items as far as credit and size allow. */
static void pick(struct outbox *self, struct outbox_table *table)
{
    struct outbox_scratch *s = self->scratch;
    uint64_t credit = table->allowed > table->sent ? table->allowed - table->sent : 0;
    uint64_t most = table->tail - table->sent;
    bool alone = table->sent == table->resolved; /* then one item may be sent whatever the credit is */
    most = most < self->batch_items ? most : self->batch_items;
    if (most > credit)
        most = credit > 0 ? credit : alone ? 1 : 0;
    uint64_t free_bytes = outbox_free_bytes(self);
    size_t bytes = HEADER_BASE;
    for (uint32_t i = 0; i < most; i++) {
        const struct queued_item *item = outbox_item(table, table->sent + i);
        uint32_t n_chunks = s->n_chunks;
        size_t cost = item_cost(self, item, &n_chunks);
        bool fits = bytes + cost <= free_bytes && bytes + cost <= self->max_message_bytes;
        if (i > 0 && (!fits || bytes + cost > OUTBOX_MESSAGE_BYTES))
            return;
        if (!fits && !alone)
            return;
        if (!scratch_room(s, n_chunks, self->n_columns)) {
            self->short_of_memory = true;
            return;
        }
        /* An item that is too large to be sent goes without its chunks, so that the broker's rejection reports it. */
        if (bytes + cost <= self->max_message_bytes)
            pick_chunks(self, item);
        pick_item(self, item, table->sent + i - table->base + 1);
        bytes += cost;
        if (!fits)
            return;
    }
}

/* ---- frames */

static void free_header(void *data, void *hint)
{
    (void)hint;
    free(data);
}

static void return_header(void *data, void *hint)
{
    (void)hint;
    pool_put(data);
}

/* Set while frames that were never sent are freed: their blocks stay with their chunks. */
static _Thread_local bool undoing;

static void give_back(void *block, void *hint)
{
    (void)hint;
    if (!undoing)
        pool_put(block);
}

static bool gives_block(const struct step_chunk *chunk)
{
    return chunk->owns && !chunk->arena;
}

static bool own_frame(zmq_msg_t *frame, const struct step_chunk *chunk)
{
    if (gives_block(chunk))
        return zmq_msg_init_data(frame, chunk->data, chunk->size, give_back, NULL) == 0;
    if (chunk->frame > 0) {
        zmq_msg_init(frame);
        return zmq_msg_copy(frame, &chunk->message->frames[chunk->frame]) == 0;
    }
    if (zmq_msg_init_size(frame, chunk->size) != 0)
        return false;
    memcpy(zmq_msg_data(frame), chunk->data, chunk->size);
    return true;
}

/* Records that the message holds the chunk's bytes from now on. */
static void move_chunk(struct outbox *self, struct step_chunk *chunk, struct message *message, uint32_t frame,
                       uint8_t *data)
{
    struct message *before = chunk->message;
    message->live++;
    if (!before)
        message->chunk_bytes += chunk->size; /* each chunk counts once as in flight */
    if (chunk->owns && chunk->arena)
        chunk_arena_put(chunk->arena, 1);
    else if (chunk->owns)
        pool_chain_add(&self->done.raws, chunk->data);
    chunk->message = message;
    chunk->frame = frame;
    chunk->data = data;
    chunk->owns = false;
    if (before)
        outbox_unlive(self, before);
}

static uint32_t count_packed(const struct outbox_scratch *s, size_t *bytes)
{
    uint32_t packed = 0;
    *bytes = 0;
    while (packed < s->n_chunks &&
           (s->chunks[packed]->size < OUTBOX_OWN_FRAME || s->n_chunks - packed > OUTBOX_MAX_FRAMES))
        *bytes += s->chunks[packed++]->size;
    return packed;
}

static void describe_chunks(struct outbox_scratch *s, uint32_t n_columns)
{
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        struct step_chunk *chunk = s->chunks[i];
        s->chunk_number[i] = chunk->number;
        s->chunk_step[i] = chunk->step;
        s->chunk_length[i] = chunk->length;
        s->chunk_episode[i] = chunk->episode;
        const uint8_t *codecs = step_chunk_codecs(chunk, n_columns);
        for (uint32_t c = 0; c < n_columns; c++) { /* most often one or a few: no calls for those */
            s->block_size[(size_t)i * n_columns + c] = chunk->block_size[c];
            s->block_codec[(size_t)i * n_columns + c] = codecs[c];
        }
    }
}

static bool encode_header(struct outbox_scratch *s, zmq_msg_t *frame, const struct wire_ingest_out *in)
{
    size_t bound = header_bound(s->n_items, s->n_runs, s->n_chunks, in->n_columns) + s->layouts.size;
    bool pooled = bound <= s->header_bytes && bound > s->header_bytes / 2; /* a small one would waste a block */
    struct pb_writer out = {0};
    if (pooled) {
        out.data = pool_get(s->headers);
        out.capacity = s->header_bytes;
        if (!out.data)
            return false;
    }
    wire_write_ingest(&out, in);
    if (!out.failed && zmq_msg_init_data(frame, out.data, out.size, pooled ? return_header : free_header, NULL) == 0)
        return true;
    if (pooled)
        pool_reuse(s->headers, out.data);
    else
        pb_writer_fini(&out);
    return false;
}

static bool header_frame(struct outbox *self, zmq_msg_t *frame, uint32_t packed)
{
    struct outbox_scratch *s = self->scratch;
    s->layouts.size = 0;
    s->layouts.failed = false; /* a lack of memory may have failed the message before */
    for (uint32_t i = 0; i < s->n_new_layouts; i++) {
        void *place = pb_reserve(&s->layouts, s->new_layouts[i]->wire_size);
        if (!place)
            return false;
        memcpy(place, s->new_layouts[i]->wire, s->new_layouts[i]->wire_size);
    }
    struct wire_ingest_out in = {
        .session = self->session,
        .epoch = self->epoch,
        .number = self->last_number + 1,
        .oldest_chunk = self->announced,
        .layouts = s->layouts.data,
        .layouts_size = s->layouts.size,
        .n_chunks = s->n_chunks,
        .n_columns = self->n_columns,
        .packed = packed,
        .chunk_number = s->chunk_number,
        .chunk_step = s->chunk_step,
        .chunk_length = s->chunk_length,
        .chunk_episode = s->chunk_episode,
        .block_size = s->block_size,
        .block_codec = s->block_codec,
        .n_runs = s->n_runs,
        .run_layout = s->run_layout,
        .run_items = s->run_items,
        .run_first = s->run_first,
        .run_policy = s->run_policy,
        .n_items = s->n_items,
        .item_key = s->key,
        .item_chunk = s->item_chunk,
        .item_priority = s->priority,
        .item_offset = s->offset,
        .item_length = s->length,
    };
    return encode_header(s, frame, &in);
}

/* Returns the arena in which the packed chunks are adjacent; NULL: they are not. */
static struct chunk_arena *find_run(const struct outbox_scratch *s, uint32_t packed)
{
    struct chunk_arena *arena = s->chunks[0]->owns ? s->chunks[0]->arena : NULL;
    for (uint32_t i = 1; arena && i < packed; i++) {
        const struct step_chunk *before = s->chunks[i - 1], *chunk = s->chunks[i];
        if (!chunk->owns || chunk->data != before->data + before->size || chunk->arena != arena)
            return NULL;
    }
    return arena;
}

static bool packed_frame(const struct outbox_scratch *s, zmq_msg_t *frame, uint32_t packed, size_t bytes)
{
    struct chunk_arena *arena = find_run(s, packed);
    if (!arena)
        return zmq_msg_init_size(frame, bytes) == 0;
    return zmq_msg_init_data(frame, s->chunks[0]->data, bytes, chunk_arena_put_hint, arena) == 0;
}

static void undo_frames(zmq_msg_t *frames, uint32_t n)
{
    undoing = true;
    for (uint32_t i = 0; i < n; i++)
        zmq_msg_close(&frames[i]);
    undoing = false;
}

/* Makes the header, the frames of chunks that have their own, and last the packed frame. False: no memory, and no frames. */
static bool make_frames(struct outbox *self, zmq_msg_t *frames, uint32_t packed, size_t packed_bytes)
{
    struct outbox_scratch *s = self->scratch;
    zmq_msg_t *own = frames + 1 + (packed > 0);
    uint32_t n = 0, n_own = s->n_chunks - packed;
    if (!header_frame(self, &frames[0], packed))
        return false;
    while (n < n_own && own_frame(&own[n], s->chunks[packed + n]))
        n++;
    if (n == n_own && (packed == 0 || packed_frame(s, &frames[1], packed, packed_bytes)))
        return true;
    undo_frames(own, n);
    zmq_msg_close(&frames[0]);
    return false;
}

static struct message *message_new(struct outbox *self, uint32_t packed, size_t packed_bytes)
{
    struct outbox_scratch *s = self->scratch;
    uint32_t n_frames = 1 + (packed > 0) + s->n_chunks - packed;
    struct message *message = calloc(1, sizeof *message + n_frames * sizeof(zmq_msg_t));
    if (!message)
        return NULL;
    describe_chunks(s, self->n_columns);
    if (!make_frames(self, message->frames, packed, packed_bytes)) {
        free(message);
        return NULL;
    }
    message->number = self->last_number + 1;
    message->session = self->serial;
    message->epoch = self->epoch;
    message->n_frames = 1 + (packed > 0);
    message->live = 1; /* until the message is complete */
    return message;
}

static void fill(struct outbox *self, struct message *message, uint32_t packed)
{
    struct outbox_scratch *s = self->scratch;
    uint8_t *at = packed > 0 ? zmq_msg_data(&message->frames[1]) : NULL;
    /* In place: the frame takes over the reference of one chunk, and those of the others are returned. */
    struct chunk_arena *arena =
        packed > 0 && s->chunks[0]->owns && at == s->chunks[0]->data ? s->chunks[0]->arena : NULL;
    if (arena && packed > 1)
        chunk_arena_put(arena, packed - 1);
    for (uint32_t i = 0; i < packed; i++) {
        struct step_chunk *chunk = s->chunks[i];
        if (arena)
            chunk->owns = false;
        else
            memcpy(at, chunk->data, chunk->size);
        move_chunk(self, chunk, message, 0, at);
        at += chunk->size;
    }
    for (uint32_t i = packed; i < s->n_chunks; i++) {
        struct step_chunk *chunk = s->chunks[i];
        zmq_msg_t *frame = &message->frames[message->n_frames];
        if (gives_block(chunk))
            chunk->owns = false; /* the frame returns it */
        move_chunk(self, chunk, message, message->n_frames++, zmq_msg_data(frame));
    }
}

/* Returns the chunk before which no later item refers to any chunk. */
static uint64_t oldest_chunk(const struct outbox *self, const struct outbox_table *sending, uint32_t n)
{
    uint64_t oldest = self->mark;
    for (uint32_t t = 0; t < self->n_tables; t++) {
        const struct outbox_table *table = &self->tables[t];
        uint64_t first = table->sent + (table == sending ? n : 0);
        if (first < table->tail && outbox_item(table, first)->mark < oldest)
            oldest = outbox_item(table, first)->mark;
    }
    return oldest > self->announced ? oldest : self->announced;
}

/* Returns true if the chunks are within the span that the broker keeps. A larger jump is announced by a message of its own,
 * which is not kept: a resend sends an empty message with its number. */
static bool in_range(struct outbox *self, struct outbox_table *table)
{
    const struct outbox_scratch *s = self->scratch;
    if (s->n_chunks == 0)
        return true;
    uint64_t newest = s->chunks[s->n_chunks - 1]->number;
    if (newest - self->announced < CHUNK_JUMP)
        return true;
    uint64_t before = self->announced;
    self->announced = oldest_chunk(self, table, 0);
    if (newest - self->announced >= CHUNK_SPAN)
        return false;
    if (self->announced > before)
        self->last_number++;
    return true;
}

static void unpick(struct outbox *self)
{
    for (uint32_t i = 0; i < self->scratch->n_new_layouts; i++)
        self->scratch->new_layouts[i]->session = 0;
    self->n_layouts -= self->scratch->n_new_layouts;
}

uint32_t outbox_build(struct outbox *self, struct outbox_table *table)
{
    struct outbox_scratch *s = self->scratch;
    s->n_items = s->n_runs = s->n_chunks = s->n_new_layouts = 0;
    s->lowest = UINT64_MAX;
    self->builds++;
    pick(self, table);
    if (s->n_items == 0)
        return 0;
    size_t packed_bytes;
    uint32_t packed = count_packed(s, &packed_bytes);
    if (!in_range(self, table)) {
        unpick(self);
        return 0;
    }
    self->announced = oldest_chunk(self, table, s->n_items);
    struct message *message = message_new(self, packed, packed_bytes);
    if (!message) {
        unpick(self);
        self->short_of_memory = true;
        return 0;
    }
    fill(self, message, packed);
    message->items = s->n_items;
    message->live += s->n_items;
    message->lowest = s->lowest;
    for (uint32_t i = 0; i < s->n_items; i++)
        outbox_item(table, table->sent + i)->message = message;
    table->sent += s->n_items;
    for (uint32_t i = 0; i < message->n_frames; i++) {
        self->sent_bytes += zmq_msg_size(&message->frames[i]);
        self->counts.bytes += zmq_msg_size(&message->frames[i]);
    }
    self->counts.messages++;
    self->counts.sent += s->n_items;
    self->last_number++;
    outbox_keep(self, message);
    outbox_unlive(self, message);
    step_chunk_chain_put(&self->done);
    return s->n_items;
}
