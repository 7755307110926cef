#include "agent/client/writer/outbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/log.h"
#include "proto/base/trace.h"
#include "proto/base/utf8.h"

/* Messages that are sent in one wake-up before replies are read again. */
#define MESSAGES_PER_TURN 64u

/* ---- handoff */

bool handoff_init(struct handoff *self, struct handoff_news *news, uint32_t batch_items, uint32_t n_tables)
{
    *self = (struct handoff){.news = news, .batch_items = batch_items, .n_tables = n_tables};
    self->slots = aligned_alloc(CACHE_LINE, HANDOFF_SLOTS * sizeof *self->slots);
    self->tables = calloc(n_tables ? n_tables : 1, sizeof *self->tables);
    return self->slots && self->tables;
}

void handoff_fini(struct handoff *self)
{
    free(self->slots);
    free(self->tables);
}

bool handoff_push(struct handoff *self, const struct queued_item *item, struct step_chunk *evicted)
{
    uint64_t tail = atomic_load_explicit(&self->tail, memory_order_relaxed);
    if (tail - self->seen_head >= HANDOFF_SLOTS) {
        self->seen_head = atomic_load_explicit(&self->head, memory_order_acquire);
        if (tail - self->seen_head >= HANDOFF_SLOTS)
            return false;
    }
    struct handoff_slot *slot = &self->slots[tail % HANDOFF_SLOTS];
    slot->item = *item;
    slot->evicted = evicted;
    __builtin_prefetch(&self->slots[(tail + HANDOFF_PREFETCH) % HANDOFF_SLOTS], 1); /* the consumer has it */
    atomic_store(&self->tail, tail + 1);
    return true;
}

bool handoff_should_wake(struct handoff *self)
{
    /* Sequentially consistent, like the store of the tail: the consumer sets its mode and then reads the tail once more, so at
     * least one of the two sees the other's store. */
    int mode = atomic_load(&self->mode);
    if (mode == HANDOFF_AWAKE)
        return false;
    uint64_t waiting = atomic_load_explicit(&self->tail, memory_order_relaxed) -
                       atomic_load_explicit(&self->head, memory_order_relaxed);
    uint64_t enough = HANDOFF_SLOTS / 2;
    if (mode == HANDOFF_IDLE)
        enough = 1;
    else if (mode == HANDOFF_LINGER && self->batch_items * HANDOFF_WAKE_BATCHES < enough)
        enough = self->batch_items * HANDOFF_WAKE_BATCHES;
    if (waiting < enough)
        return false;
    atomic_store_explicit(&self->mode, HANDOFF_AWAKE, memory_order_relaxed);
    return true;
}

void handoff_signal(struct handoff *self)
{
    /* A waiter counts itself first and reads the totals after that. */
    if (atomic_load(&self->news->waiters) == 0)
        return;
    pthread_mutex_lock(&self->news->mutex);
    pthread_cond_broadcast(&self->news->moved);
    pthread_mutex_unlock(&self->news->mutex);
}

void handoff_reject(struct handoff_news *self, const rp_rejection *rejection)
{
    pthread_mutex_lock(&self->mutex);
    if (!self->rejections)
        self->rejections = malloc(HANDOFF_REJECTIONS * sizeof *self->rejections);
    if (self->rejections && self->n_rejections < HANDOFF_REJECTIONS)
        self->rejections[(self->first_rejection + self->n_rejections++) % HANDOFF_REJECTIONS] = *rejection;
    else
        self->rejections_dropped++;
    if (self->n_unreported++ == 0) {
        self->unreported.status = rejection->status;
        snprintf(self->unreported.text, sizeof self->unreported.text, "table '%.200s': item with key %llu: %.250s",
                 rejection->table, (unsigned long long)rejection->key, rejection->text);
    }
    pthread_mutex_unlock(&self->mutex);
}

/* ---- outbox */

static struct queued_item *outbox_item(const struct outbox_table *table, uint64_t index)
{
    return &table->ring[index & (table->capacity - 1)];
}

/* ---- chunks and messages */

static uint64_t message_bytes(const struct message *self)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < self->n_frames; i++)
        bytes += zmq_msg_size(&self->frames[i]);
    return bytes;
}

static void outbox_unlive(struct outbox *self, struct message *message)
{
    if (--message->live > 0)
        return;
    if (self->cursor == message)
        self->cursor = TAILQ_NEXT(message, link);
    if (message->session == self->serial) {
        TAILQ_REMOVE(&self->kept, message, link);
        self->n_kept--;
    } else {
        self->stored--;
    }
    for (uint32_t i = 0; i < message->n_frames; i++)
        zmq_msg_close(&message->frames[i]);
    free(message);
}

static void chunk_check(struct outbox *self, struct step_chunk *chunk)
{
    if (chunk->refs > 0 || chunk->in_window)
        return;
    if (chunk->message)
        outbox_unlive(self, chunk->message);
    step_chunk_chain_add(&self->done, chunk);
}

/* Inlined always: outbox_take does it for most items. */
static inline __attribute__((always_inline)) void evict(struct outbox *self, struct step_chunk *chunk)
{
    for (struct step_chunk *next; chunk; chunk = next) {
        next = chunk->evicted;
        chunk->in_window = false;
        chunk_check(self, chunk);
    }
}

void outbox_evict(struct outbox *self, struct step_chunk *chunk)
{
    evict(self, chunk);
}

/* Returns the steps from the start of the item's first chunk to its end. */
static uint64_t item_end(const struct queued_item *item)
{
    return (uint64_t)item->offset + item->length;
}

static void item_unref(struct outbox *self, const struct queued_item *item)
{
    uint64_t left = item_end(item);
    for (struct step_chunk *chunk = item->chunk, *next; chunk; chunk = next) {
        next = step_chunk_after(chunk, &left); /* next of the last chunk belongs to the writer */
        chunk->refs--;
        chunk_check(self, chunk);
    }
}

/* ---- building messages */

static uint64_t outbox_free_bytes(const struct outbox *self)
{
    uint64_t used = self->sent_bytes + self->released_bytes;
    return self->allowed_bytes > used ? self->allowed_bytes - used : 0;
}

/* Upper bounds on bytes in a header. */
#define HEADER_BASE 256u
#define HEADER_ITEM 44u
#define HEADER_RUN 24u
#define HEADER_CHUNK 24u
#define HEADER_BLOCK 5u
/* Half of the span of chunk numbers that the broker keeps; a larger jump is announced. */
#define CHUNK_SPAN (UINT64_C(1) << 20)
#define CHUNK_JUMP (UINT64_C(1) << 19)

/* The message being built. Its arrays have as many elements as needed, in one block for items, one for chunks, one for blocks. */
struct outbox_scratch {
    struct wire_ingest_out out;
    uint32_t n_new_layouts, chunk_capacity, block_capacity;
    uint64_t lowest;                  /* number of the oldest chunk that an item refers to */
    uint64_t *group;                  /* [batch_items] */
    struct item_layout **new_layouts; /* to be registered */
    struct text layouts;              /* the same, encoded */
    struct step_chunk **chunks;       /* [chunk_capacity] */
    uint64_t *chunk_place;
};

static struct outbox_scratch *outbox_scratch_new(uint32_t n)
{
    struct outbox_scratch *self = calloc(1, sizeof *self);
    uint64_t *wide = self ? malloc(n * (7 * sizeof *wide + 4 * sizeof(uint32_t))) : NULL;
    if (!wide) {
        free(self);
        return NULL;
    }
    uint32_t *narrow = (uint32_t *)(wide + (size_t)7 * n);
    self->out.item_key = wide;
    self->out.item_chunk = wide + n;
    self->out.run_first = wide + (size_t)2 * n;
    self->out.run_policy = wide + (size_t)3 * n;
    void *doubles = wide + (size_t)4 * n;
    self->out.item_priority = doubles;
    self->new_layouts = (struct item_layout **)(wide + (size_t)5 * n);
    self->group = wide + (size_t)6 * n;
    self->out.item_offset = narrow;
    self->out.item_length = narrow + n;
    self->out.run_layout = narrow + (size_t)2 * n;
    self->out.run_items = narrow + (size_t)3 * n;
    return self;
}

/* Makes room for chunks and their blocks. The lists of numbers are filled when the message is complete: only `chunks` is kept. */
static bool scratch_room(struct outbox_scratch *self, uint32_t n_chunks, uint32_t n_columns)
{
    if (n_chunks > self->chunk_capacity) {
        size_t n = n_chunks < 64 ? 64 : (size_t)n_chunks * 2;
        struct step_chunk **grown = realloc(self->chunks, n * (4 * sizeof *grown + 2 * sizeof(uint32_t)));
        if (!grown)
            return false;
        self->chunks = grown;
        self->out.chunk_number = (uint64_t *)(grown + n);
        self->out.chunk_step = self->out.chunk_number + n;
        self->chunk_place = self->out.chunk_step + n;
        self->out.chunk_length = (uint32_t *)(self->chunk_place + n);
        self->out.chunk_episode = self->out.chunk_length + n;
        self->chunk_capacity = (uint32_t)n;
    }
    uint64_t blocks = (uint64_t)n_chunks * n_columns;
    if (blocks > UINT32_MAX / 2)
        return false;
    if (blocks > self->block_capacity) {
        size_t n = blocks < 64 ? 64 : (size_t)blocks * 2;
        uint32_t *grown = realloc(self->out.block_size, n * (sizeof *grown + 1));
        if (!grown)
            return false;
        self->out.block_size = grown;
        self->out.block_codec = (uint8_t *)(grown + n);
        self->block_capacity = (uint32_t)n;
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
    uint64_t left = item_end(item);
    for (const struct step_chunk *chunk = item->chunk; chunk; chunk = step_chunk_after(chunk, &left))
        if (!is_sent(self, chunk) && chunk->picked != self->builds) {
            bytes += chunk->size + HEADER_CHUNK + (size_t)HEADER_BLOCK * self->n_columns;
            (*n_chunks)++;
        }
    if (item->layout->session != self->serial)
        bytes += item->layout->wire_size;
    return bytes;
}

static void pick_chunks(struct outbox *self, const struct queued_item *item)
{
    struct outbox_scratch *s = self->scratch;
    uint64_t left = item_end(item);
    for (struct step_chunk *chunk = item->chunk; chunk; chunk = step_chunk_after(chunk, &left)) {
        if (is_sent(self, chunk) || chunk->picked == self->builds)
            continue;
        chunk->picked = self->builds;
        uint32_t at = s->out.n_chunks++;
        for (; at > 0 && s->chunks[at - 1]->number > chunk->number; at--)
            s->chunks[at] = s->chunks[at - 1];
        s->chunks[at] = chunk;
    }
}

static void pick_item(struct outbox *self, const struct queued_item *item, uint64_t number)
{
    struct outbox_scratch *s = self->scratch;
    uint32_t i = s->out.n_items++, run = s->out.n_runs;
    if (item->layout->session != self->serial) {
        item->layout->session = self->serial;
        item_layout_number(item->layout, self->n_layouts++);
        s->new_layouts[s->n_new_layouts++] = item->layout;
    }
    s->out.item_key[i] = item->key;
    s->out.item_priority[i] = item->priority;
    s->out.item_chunk[i] = item->chunk->number;
    s->lowest = s->out.item_chunk[i] < s->lowest ? s->out.item_chunk[i] : s->lowest;
    s->out.item_offset[i] = item->offset;
    s->out.item_length[i] = item->length;
    if (run > 0 && s->out.run_layout[run - 1] == item->layout->id && s->out.run_policy[run - 1] == item->policy) {
        s->out.run_items[run - 1]++;
        return;
    }
    s->out.run_layout[run] = item->layout->id;
    s->out.run_policy[run] = item->policy;
    s->out.run_first[run] = number;
    s->out.run_items[run] = 1;
    s->out.n_runs++;
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
    s->out.item_group = table->groups ? s->group : NULL;
    for (uint32_t i = 0; table->groups && i < most; i++)
        s->group[i] = table->groups[(table->sent + i) & (table->capacity - 1)];
    for (uint32_t i = 0; i < most; i++) {
        const struct queued_item *item = outbox_item(table, table->sent + i);
        uint32_t n_chunks = s->out.n_chunks;
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

/* Returns where the chunk lies in the memory that the broker may read. 0: elsewhere. */
static uint64_t chunk_place(const struct step_chunk *chunk)
{
    return gives_block(chunk) ? pool_place(chunk->data) : chunk->place;
}

/* True if the chunk is copied to the frame that small ones share. */
static bool is_packed(const struct outbox *self, const struct step_chunk *chunk)
{
    return chunk->size < (self->reads && chunk_place(chunk) ? OUTBOX_OWN_PLACE : OUTBOX_OWN_FRAME);
}

static bool own_frame(zmq_msg_t *frame, const struct step_chunk *chunk)
{
    if (gives_block(chunk))
        return zmq_msg_init_data(frame, chunk->data, chunk->size, give_back, NULL) == 0;
    if (chunk->frame > 0) {
        zmq_msg_init(frame);
        return zmq_msg_copy(frame, &chunk->message->frames[chunk->frame]) == 0;
    }
    return message_copy(frame, chunk->data, chunk->size);
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
    chunk->place = frame > 0 ? chunk->place : 0;
    chunk->data = data;
    chunk->owns = false;
    if (before)
        outbox_unlive(self, before);
}

static void describe_chunks(struct outbox_scratch *s, uint32_t n_columns)
{
    for (uint32_t i = 0; i < s->out.n_chunks; i++) {
        struct step_chunk *chunk = s->chunks[i];
        s->out.chunk_number[i] = chunk->number;
        s->out.chunk_step[i] = chunk->step;
        s->out.chunk_length[i] = chunk->length;
        s->out.chunk_episode[i] = chunk->episode;
        const uint8_t *codecs = step_chunk_codecs(chunk, n_columns);
        for (uint32_t c = 0; c < n_columns; c++) { /* most often one or a few: no calls for those */
            s->out.block_size[(size_t)i * n_columns + c] = chunk->block_size[c];
            s->out.block_codec[(size_t)i * n_columns + c] = codecs[c];
        }
    }
}

/* Largest chunk that the broker copies itself: a larger one would keep it from other work for too long. */
#define PLACED_MOST (4u << 20)

/* Finds where the chunks lie that have a frame of their own. False: not all of them are where the broker reads. */
static bool find_places(const struct outbox *self, uint32_t packed)
{
    const struct outbox_scratch *s = self->scratch;
    for (uint32_t i = packed; i < s->out.n_chunks; i++) {
        struct step_chunk *chunk = s->chunks[i];
        s->chunk_place[i] = chunk->place = chunk_place(chunk);
        if (!chunk->place || chunk->size > PLACED_MOST)
            return false;
    }
    return self->reads && packed < s->out.n_chunks;
}

static bool header_frame(struct outbox *self, zmq_msg_t *frame, uint32_t packed, bool placed)
{
    struct outbox_scratch *s = self->scratch;
    s->layouts.size = 0;
    s->layouts.failed = false; /* a lack of memory may have failed the message before */
    for (uint32_t i = 0; i < s->n_new_layouts; i++) {
        void *place = text_reserve(&s->layouts, s->new_layouts[i]->wire_size);
        if (!place)
            return false;
        memcpy(place, s->new_layouts[i]->wire, s->new_layouts[i]->wire_size);
    }
    s->out.session = self->session;
    s->out.epoch = self->epoch;
    s->out.number = self->last_number + 1;
    s->out.oldest_chunk = self->announced;
    s->out.layouts = s->layouts.data;
    s->out.layouts_size = s->layouts.size;
    s->out.n_columns = self->n_columns;
    s->out.packed = packed;
    s->out.place = placed ? s->chunk_place + packed : NULL;
    struct text out = {0};
    wire_write_ingest(&out, &s->out);
    if (!out.failed && zmq_msg_init_data(frame, out.data, out.size, free_header, NULL) == 0)
        return true;
    text_fini(&out);
    return false;
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

/* Makes the header, the frames of chunks that have their own, and last the packed frame. False: no memory, and no frames. */
static bool make_frames(struct outbox *self, zmq_msg_t *frames, uint32_t packed, size_t packed_bytes, bool placed)
{
    struct outbox_scratch *s = self->scratch;
    zmq_msg_t *own = frames + 1 + (packed > 0);
    uint32_t n = 0, n_own = s->out.n_chunks - packed;
    if (!header_frame(self, &frames[0], packed, placed))
        return false;
    while (n < n_own && own_frame(&own[n], s->chunks[packed + n]))
        n++;
    bool ok = n == n_own;
    struct chunk_arena *arena = ok && packed > 0 ? find_run(s, packed) : NULL;
    if (arena)
        ok = zmq_msg_init_data(&frames[1], s->chunks[0]->data, packed_bytes, chunk_arena_put_hint, arena) == 0;
    else if (ok && packed > 0)
        ok = zmq_msg_init_size(&frames[1], packed_bytes) == 0;
    if (ok)
        return true;
    undoing = true;
    while (n > 0)
        zmq_msg_close(&own[--n]);
    undoing = false;
    zmq_msg_close(&frames[0]);
    return false;
}

static struct message *message_new(struct outbox *self, uint32_t packed, size_t packed_bytes)
{
    struct outbox_scratch *s = self->scratch;
    uint32_t n_frames = 1 + (packed > 0) + s->out.n_chunks - packed;
    struct message *message = calloc(1, sizeof *message + n_frames * sizeof(zmq_msg_t));
    if (!message)
        return NULL;
    describe_chunks(s, self->n_columns);
    bool placed = find_places(self, packed);
    if (!make_frames(self, message->frames, packed, packed_bytes, placed)) {
        free(message);
        return NULL;
    }
    message->number = self->last_number + 1;
    message->session = self->serial;
    message->epoch = self->epoch;
    message->n_frames = 1 + (packed > 0);
    message->n_sent = placed ? message->n_frames : n_frames;
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
    for (uint32_t i = packed; i < s->out.n_chunks; i++) {
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
    if (s->out.n_chunks == 0)
        return true;
    uint64_t newest = s->chunks[s->out.n_chunks - 1]->number;
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

static uint32_t outbox_build(struct outbox *self, struct outbox_table *table)
{
    struct outbox_scratch *s = self->scratch;
    s->out.n_items = s->out.n_runs = s->out.n_chunks = s->n_new_layouts = 0;
    s->lowest = UINT64_MAX;
    self->builds++;
    pick(self, table);
    if (s->out.n_items == 0)
        return 0;
    size_t packed_bytes = 0;
    uint32_t packed = 0; /* chunks in one frame; large ones have a frame each */
    while (packed < s->out.n_chunks &&
           (is_packed(self, s->chunks[packed]) || s->out.n_chunks - packed > OUTBOX_MAX_FRAMES))
        packed_bytes += s->chunks[packed++]->size;
    if (!in_range(self, table)) {
        unpick(self);
        return 0;
    }
    self->announced = oldest_chunk(self, table, s->out.n_items);
    struct message *message = message_new(self, packed, packed_bytes);
    if (!message) {
        unpick(self);
        self->short_of_memory = true;
        return 0;
    }
    fill(self, message, packed);
    message->items = s->out.n_items;
    message->live += s->out.n_items;
    message->lowest = s->lowest;
    for (uint32_t i = 0; i < s->out.n_items; i++)
        outbox_item(table, table->sent + i)->message = message;
    table->sent += s->out.n_items;
    self->sent_bytes += message_bytes(message);
    self->counts.bytes += message_bytes(message);
    self->counts.messages++;
    self->counts.sent += s->out.n_items;
    self->last_number++;
    TAILQ_INSERT_TAIL(&self->kept, message, link);
    self->n_kept++;
    self->cursor = self->cursor ? self->cursor : message;
    outbox_unlive(self, message);
    step_chunk_chain_put(&self->done);
    return s->out.n_items;
}

/* ---- life */

bool outbox_init(struct outbox *self, struct handoff *handoff, const struct conn_hello *hello, uint32_t n_columns,
                 int32_t doubt)
{
    *self = (struct outbox){.handoff = handoff,
                            .hello = hello,
                            .n_columns = n_columns,
                            .batch_items = handoff->batch_items,
                            .doubt = doubt,
                            .n_tables = (uint32_t)hello->says->n_tables,
                            .wire_next = 1,
                            .mark = 1,
                            .max_message_bytes = hello->says->max_message_bytes};
    TAILQ_INIT(&self->kept);
    self->tables = calloc(self->n_tables ? self->n_tables : 1, sizeof *self->tables);
    self->scratch = outbox_scratch_new(self->batch_items);
    for (uint32_t i = 0; self->tables && i < self->n_tables; i++)
        self->tables[i] = (struct outbox_table){
            .id = hello->says->tables[i]->id, .known = true, .grouped = hello->says->tables[i]->group_size > 0};
    return self->tables && self->scratch;
}

/* ---- items */

static bool table_grow(struct outbox_table *self)
{
    uint64_t capacity = self->capacity ? self->capacity * 2 : 256;
    struct queued_item *ring = malloc(capacity * sizeof *ring);
    uint64_t *groups = self->grouped ? malloc(capacity * sizeof *groups) : NULL;
    if (!ring || (self->grouped && !groups)) {
        free(ring);
        free(groups);
        return false;
    }
    for (uint64_t i = self->resolved; i < self->tail; i++) {
        ring[i & (capacity - 1)] = self->ring[i & (self->capacity - 1)];
        if (groups)
            groups[i & (capacity - 1)] = self->groups[i & (self->capacity - 1)];
    }
    free(self->ring);
    free(self->groups);
    self->ring = ring;
    self->groups = groups;
    self->capacity = capacity;
    return true;
}

bool outbox_take(struct outbox *self)
{
    struct handoff_slot *slot;
    while ((slot = handoff_peek(self->handoff)) != NULL) {
        if (slot->item.chunk) {
            struct outbox_table *table = &self->tables[slot->item.layout->table];
            if (table->tail - table->resolved == table->capacity && !table_grow(table))
                return false;
            if (__builtin_expect(table->groups != NULL, 0))
                table->groups[table->tail & (table->capacity - 1)] = self->group;
            *outbox_item(table, table->tail++) = slot->item;
            uint64_t left = item_end(&slot->item);
            for (struct step_chunk *chunk = slot->item.chunk; chunk; chunk = step_chunk_after(chunk, &left))
                chunk->refs++;
            self->mark = slot->item.mark;
        } else if (__builtin_expect(slot->item.length, 0)) {
            self->group = slot->item.key;
        }
        evict(self, slot->evicted);
        handoff_popped(self->handoff);
    }
    step_chunk_chain_put(&self->done);
    return true;
}

/* How far ahead the chunks of items that are resolved are fetched. */
#define PREFETCH_ITEMS 8u

/* Resolves the oldest unresolved items, up to this index. */
static void resolve_to(struct outbox *self, struct outbox_table *table, uint64_t index)
{
    uint64_t n = 0;
    for (; table->resolved < index && table->resolved < table->sent; n++) {
        step_chunk_prefetch(outbox_item(table, table->resolved + PREFETCH_ITEMS)->chunk);
        struct queued_item *item = outbox_item(table, table->resolved++);
        struct message *message = item->message;
        if (--message->items == 0)
            atomic_fetch_add(&self->handoff->done_bytes, message->chunk_bytes);
        outbox_unlive(self, message);
        item_unref(self, item);
    }
    if (n > 0)
        atomic_fetch_add(&self->handoff->resolved, n);
}

void outbox_fini(struct outbox *self)
{
    if (self->handoff)
        outbox_take(self);
    for (uint32_t t = 0; self->tables && t < self->n_tables; t++) {
        struct outbox_table *table = &self->tables[t];
        resolve_to(self, table, table->sent);
        for (; table->resolved < table->tail; table->resolved++)
            item_unref(self, outbox_item(table, table->resolved));
        free(table->ring);
        free(table->groups);
    }
    step_chunk_chain_put(&self->done);
    free(self->tables);
    if (self->scratch) {
        free(self->scratch->out.item_key);
        free(self->scratch->chunks);
        free(self->scratch->out.block_size);
        text_fini(&self->scratch->layouts);
        free(self->scratch);
    }
    *self = (struct outbox){0};
}

/* ---- sending */

/* Tells the application that an item of table t is not accepted, or may not be. */
static void reject(struct outbox *self, uint32_t t, rp_status status, uint64_t key, const char *text)
{
    rp_rejection rejection = {.status = status, .key = key};
    if (t < self->n_tables)
        snprintf(rejection.table, sizeof rejection.table, "%s", self->hello->says->tables[t]->name);
    snprintf(rejection.text, sizeof rejection.text, "%s", text);
    rejection.text[utf8_whole(rejection.text, strlen(rejection.text))] = '\0';
    handoff_reject(self->handoff->news, &rejection);
}

/* Rejects the unsent items of a table that the broker no longer has. */
static void reject_unknown(struct outbox *self, uint32_t t)
{
    struct outbox_table *table = &self->tables[t];
    uint64_t n = 0;
    for (; table->sent < table->tail; table->sent++, n++) {
        struct queued_item *item = outbox_item(table, table->sent);
        reject(self, t, RP_NOT_FOUND, item->key, "the broker was restarted without this table");
        item_unref(self, item);
    }
    table->base = table->resolved = table->sent;
    self->counts.rejected += n;
    atomic_fetch_add(&self->handoff->resolved, n);
}

/* Sends one message; false: the socket is full. */
static bool transmit(struct outbox *self, struct message *message, struct port push)
{
    zmq_msg_t copy;
    uint32_t n = self->reads ? message->n_sent : message->n_frames;
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 && message->epoch != self->epoch) {
            /* libzmq may still read the frame that was sent first: change the epoch in a copy. */
            if (!message_copy(&copy, zmq_msg_data(&message->frames[0]), zmq_msg_size(&message->frames[0]))) {
                self->short_of_memory = true;
                return false;
            }
            wire_patch_ingest(zmq_msg_data(&copy), self->session, self->epoch);
        } else {
            zmq_msg_init(&copy);
            zmq_msg_copy(&copy, &message->frames[i]);
        }
        if (!port_send(push, &copy, i + 1 < n)) {
            zmq_msg_close(&copy);
            return false; /* the socket takes a whole message or nothing */
        }
    }
    return true;
}

/* Sends an empty message in place of one that was dropped, so that the numbers have no gap. */
static bool transmit_blank(struct outbox *self, struct port push)
{
    struct text out = {0};
    uint64_t oldest = self->announced;
    for (const struct message *message = self->cursor; message; message = TAILQ_NEXT(message, link))
        oldest = message->lowest < oldest ? message->lowest : oldest;
    struct wire_ingest_out blank = {.session = self->session,
                                    .epoch = self->epoch,
                                    .number = self->wire_next,
                                    .oldest_chunk = oldest,
                                    .n_columns = self->n_columns};
    wire_write_ingest(&out, &blank);
    self->short_of_memory |= out.failed;
    bool ok = !out.failed && port_send_bytes(push, out.data, out.size, false);
    text_fini(&out);
    return ok;
}

/* Sends messages that have a number and were not sent in this epoch. */
static bool catch_up(struct outbox *self, struct port push)
{
    while (self->wire_next <= self->last_number) {
        bool blank = !self->cursor || self->cursor->number > self->wire_next;
        int64_t start = trace_now(self->trace);
        if (!(blank ? transmit_blank(self, push) : transmit(self, self->cursor, push)))
            return false;
        if (start)
            trace_add(self->trace, "send", NULL,
                      &(struct trace_span){.start_ns = start,
                                           .duration_ns = clock_ns() - start,
                                           .who = self->ordinal,
                                           .id = self->wire_next,
                                           .link = TRACE_INGEST});
        if (self->wire_next <= self->highest_sent)
            self->counts.resent++;
        else
            self->highest_sent = self->wire_next;
        self->wire_next++;
        if (!blank)
            self->cursor = TAILQ_NEXT(self->cursor, link);
    }
    return true;
}

/* A full socket signals when it has room; after a lack of memory, retry soon. */
static enum outbox_more full_or_short(struct outbox *self, int64_t now_ns)
{
    if (!self->short_of_memory)
        return OUTBOX_FULL;
    self->last_partial_ns = now_ns;
    return OUTBOX_LINGER;
}

enum outbox_more outbox_send(struct outbox *self, struct port push, int64_t now_ns, bool urgent)
{
    self->short_of_memory = false;
    if (!catch_up(self, push))
        return full_or_short(self, now_ns);
    bool linger = !urgent && now_ns - self->last_partial_ns < OUTBOX_LINGER_NS;
    enum outbox_more more = OUTBOX_EMPTY;
    uint32_t idle = 0;
    for (uint32_t built = 0; built < MESSAGES_PER_TURN && idle < self->n_tables;) {
        struct outbox_table *table = &self->tables[self->turn];
        self->turn = (self->turn + 1) % self->n_tables;
        uint64_t waiting = table->tail - table->sent;
        if (waiting > 0 && !table->known && table->sent == table->resolved) {
            reject_unknown(self, (uint32_t)(table - self->tables));
            handoff_signal(self->handoff);
        }
        if (waiting == 0 || !table->known) {
            idle++;
            continue;
        }
        if (waiting < self->batch_items && linger) {
            more = OUTBOX_LINGER;
            idle++;
            continue;
        }
        self->short_of_memory = false;
        int64_t start = trace_now(self->trace);
        uint32_t n = outbox_build(self, table);
        if (n)
            trace_add_since(self->trace, "pack items", NULL, start, n);
        if (n == 0) {
            if (self->short_of_memory)
                self->last_partial_ns = now_ns;
            more = more == OUTBOX_LINGER || self->short_of_memory ? OUTBOX_LINGER : OUTBOX_BLOCKED;
            idle++;
            continue;
        }
        idle = 0;
        built++;
        if (waiting < self->batch_items)
            self->last_partial_ns = now_ns;
        if (!catch_up(self, push))
            return full_or_short(self, now_ns);
    }
    return idle < self->n_tables ? OUTBOX_MORE : more;
}

/* ---- sessions */

uint64_t outbox_oldest(const struct outbox *self)
{
    const struct message *first = TAILQ_FIRST(&self->kept);
    uint64_t oldest = first ? first->number : self->last_number + 1;
    return oldest <= self->received ? oldest : self->received + 1; /* empty messages can always be sent again */
}

void outbox_open(struct outbox *self, const Replay__HelloReply *hello)
{
    bool fresh = self->serial == 0 || memcmp(hello->session.data, self->session, WIRE_SESSION_BYTES) != 0;
    for (uint32_t t = 0; t < self->n_tables;
         t++) { /* a broker that restarts with another configuration has other ids */
        self->tables[t].known = false;
        for (size_t i = 0; i < hello->n_tables; i++)
            if (strcmp(hello->tables[i]->name, self->hello->says->tables[t]->name) == 0) {
                self->tables[t].known = true;
                self->tables[t].id = hello->tables[i]->id;
            }
    }
    if (hello->max_message_bytes)
        self->max_message_bytes = hello->max_message_bytes;
    memcpy(self->session, hello->session.data, WIRE_SESSION_BYTES);
    self->epoch = hello->epoch;
    self->ordinal = hello->ordinal;
    self->allowed_bytes = self->released_bytes = 0; /* both start at 0 in each epoch */
    self->reads = hello->reads && self->pool;
    if (self->pool)
        pool_share(self->pool, self->reads);
    if (fresh) {
        self->serial++;
        self->counts.sessions++;
        self->rejections_seen = 0;
        self->announced = 1;
        self->n_layouts = 0;
        for (uint32_t t = 0; t < self->n_tables; t++)
            self->tables[t].rejected = 0;
    }
    for (uint32_t t = 0; t < self->n_tables; t++)
        if (!self->tables[t].known && self->tables[t].resolved == self->tables[t].sent)
            reject_unknown(self, t);
    self->counts.lost_messages += hello->lost_messages;
    uint64_t received = hello->credit ? hello->credit->received : 0;
    self->received = received;
    self->wire_next = received < self->last_number ? received + 1 : self->last_number + 1;
    self->cursor = TAILQ_FIRST(&self->kept);
    while (self->cursor && self->cursor->number < self->wire_next)
        self->cursor = TAILQ_NEXT(self->cursor, link);
    atomic_store(&self->handoff->key_count, hello->key_count);
    /* A broker that restarted from an older state has counted fewer bytes than were sent, and would never allow enough. Count the bytes
     * that it has counted, and those of the messages that are sent again. */
    if (hello->lost_messages && hello->credit) {
        self->sent_bytes = hello->credit->returned_bytes;
        for (const struct message *message = self->cursor; message; message = TAILQ_NEXT(message, link))
            self->sent_bytes += message_bytes(message);
    }
    atomic_store(&self->handoff->key_base, hello->key_base);
    if (fresh)
        atomic_store(&self->handoff->renew, false);
}

void outbox_close(struct outbox *self)
{
    self->reads = false;
    if (self->pool)
        pool_share(self->pool, false);
}

bool outbox_is_settled(const struct outbox *self)
{
    for (uint32_t t = 0; t < self->n_tables; t++)
        if (self->tables[t].resolved != self->tables[t].tail)
            return false;
    return !handoff_peek(self->handoff);
}

static void report_doubt(struct outbox *self, uint32_t t)
{
    struct outbox_table *table = &self->tables[t];
    for (uint64_t i = table->resolved; i < table->sent; i++)
        reject(self, t, RP_IN_DOUBT, outbox_item(table, i)->key,
               "sent in a session that the broker no longer knows: it may or may not be in the table");
    self->counts.in_doubt += table->sent - table->resolved;
    resolve_to(self, table, table->sent);
}

/* Makes sent items unsent again. Their messages stay as long as their chunks may be needed. */
static void take_back(struct outbox *self, struct outbox_table *table)
{
    uint64_t mark = table->sent < table->tail ? outbox_item(table, table->sent)->mark : self->mark;
    for (uint64_t i = table->sent; i-- > table->resolved;) {
        struct queued_item *item = outbox_item(table, i);
        struct message *message = item->message;
        item->mark = mark = item->chunk->number < mark ? item->chunk->number : mark;
        if (--message->items == 0)
            atomic_fetch_add(&self->handoff->done_bytes, message->chunk_bytes);
        outbox_unlive(self, message);
    }
    table->again = table->sent;
    self->counts.sent -= table->sent - table->resolved;
    table->sent = table->resolved;
}

void outbox_forget(struct outbox *self, bool left)
{
    uint64_t doubt = 0;
    for (uint32_t t = 0; t < self->n_tables; t++) {
        doubt += self->tables[t].sent - self->tables[t].resolved;
        if (self->doubt == RP_DOUBT_RESEND)
            take_back(self, &self->tables[t]);
        else
            report_doubt(self, t);
        self->tables[t].base = self->tables[t].sent;
        self->tables[t].allowed = self->tables[t].sent;
    }
    if (!left)
        log_line(LEVEL_ERROR, "C0201", "the broker has forgotten this writer's session",
                 "items_in_doubt=%llu policy=%s", (unsigned long long)doubt,
                 self->doubt == RP_DOUBT_RESEND ? "resend" : "report");
    /* From now on the remaining messages of this session only store chunks. */
    for (struct message *message = TAILQ_FIRST(&self->kept); message; message = TAILQ_NEXT(message, link))
        message->session = 0;
    TAILQ_INIT(&self->kept);
    self->stored += self->n_kept;
    self->n_kept = 0;
    self->cursor = NULL;
    self->last_number = self->highest_sent = self->received = 0;
    self->wire_next = 1;
    self->sent_bytes = self->allowed_bytes = self->released_bytes = 0;
    memset(self->session, 0, sizeof self->session);
    handoff_signal(self->handoff);
}

/* ---- credit */

static void take_rejection(struct outbox *self, const Replay__Rejection *wire)
{
    uint32_t t = 0;
    while (t < self->n_tables && self->tables[t].id != wire->table)
        t++;
    /* The item was in doubt, is in the table, and was sent again: not a rejection. */
    if (t < self->n_tables && wire->status == RP_ALREADY_EXISTS &&
        self->tables[t].base + wire->item <= self->tables[t].again)
        self->counts.rejected--;
    else
        reject(self, t, (rp_status)wire->status, wire->key, wire->text);
}

void outbox_credit(struct outbox *self, const Replay__Credit *credit)
{
    size_t n = credit->n_table;
    if (credit->n_resolved != n || credit->n_allowed != n || credit->n_rejected != n)
        n = 0;
    if (credit->allowed_bytes > self->allowed_bytes)
        self->allowed_bytes = credit->allowed_bytes;
    if (credit->keep_bytes && outbox_free_bytes(self) > credit->keep_bytes)
        self->released_bytes += outbox_free_bytes(self) - credit->keep_bytes;
    if (credit->received > self->received)
        self->received = credit->received;
    /* Rejections first, so that a caller that waits for the last item finds them. */
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++)
            for (uint32_t t = 0; t < self->n_tables; t++) {
                struct outbox_table *table = &self->tables[t];
                if (table->id != credit->table[i] || !table->known)
                    continue;
                if (pass == 1) {
                    resolve_to(self, table, table->base + credit->resolved[i]);
                    continue;
                }
                if (table->base + credit->allowed[i] > table->allowed)
                    table->allowed = table->base + credit->allowed[i];
                if (credit->rejected[i] > table->rejected) {
                    self->counts.rejected += credit->rejected[i] - table->rejected;
                    table->rejected = credit->rejected[i];
                }
            }
        for (size_t i = 0; i < credit->n_rejections; i++)
            if (credit->first_rejection + i + 1 > self->rejections_seen) {
                self->rejections_seen = credit->first_rejection + i + 1;
                take_rejection(self, credit->rejections[i]);
            }
    }
    step_chunk_chain_put(&self->done);
    outbox_publish(self);
    handoff_signal(self->handoff);
}

void outbox_publish(struct outbox *self)
{
    pthread_mutex_lock(&self->handoff->news->mutex);
    self->counts.stored = self->n_kept + self->stored;
    self->handoff->counts = self->counts;
    for (uint32_t t = 0; t < self->n_tables; t++)
        self->handoff->tables[t] =
            (struct handoff_table){self->tables[t].sent, self->tables[t].resolved, self->tables[t].allowed};
    pthread_mutex_unlock(&self->handoff->news->mutex);
}
