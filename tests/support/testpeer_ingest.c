/* The writing side of a testpeer: makes messages of layouts, chunks and items. */
#include "tests/support/testpeer.h"

static uint64_t *table_items(struct testpeer *self, const char *table)
{
    for (uint32_t i = 0; i < self->n_tables; i++)
        if (strcmp(self->tables[i].name, table) == 0)
            return &self->tables[i].items;
    assert_true(self->n_tables < 16);
    snprintf(self->tables[self->n_tables].name, sizeof self->tables[0].name, "%s", table);
    return &self->tables[self->n_tables++].items;
}

uint32_t testpeer_layout(struct testpeer *self, const char *table, uint32_t n, const Replay__Field *fields)
{
    Replay__Field *list[64];
    assert_true(n <= 64 && self->n_layouts < TESTPEER_LAYOUTS);
    for (uint32_t i = 0; i < n; i++)
        list[i] = (Replay__Field *)(uintptr_t)&fields[i];
    Replay__Layout layout = REPLAY__LAYOUT__INIT;
    layout.id = self->n_layouts;
    layout.table = testpeer_text(table);
    layout.n_fields = n;
    layout.fields = list;
    size_t size = replay__layout__get_packed_size(&layout);
    pb_tag(&self->draft->layouts, 7, PB_BYTES);
    pb_varint(&self->draft->layouts, size);
    replay__layout__pack(&layout, text_reserve(&self->draft->layouts, size));
    snprintf(self->layouts[self->n_layouts].table, sizeof self->layouts[0].table, "%s", table);
    self->layouts[self->n_layouts].items = table_items(self, table);
    return self->n_layouts++;
}

uint32_t testpeer_plain(struct testpeer *self, const char *table)
{
    for (uint32_t i = 0; i < self->n_layouts; i++)
        if (strcmp(self->layouts[i].table, table) == 0)
            return i;
    Replay__Field field = REPLAY__FIELD__INIT;
    field.name = testpeer_text("x");
    field.count = 1;
    field.squeeze = true;
    return testpeer_layout(self, table, 1, &field);
}

uint64_t testpeer_chunk(struct testpeer *self, uint32_t rows, const void *const *blocks, bool own)
{
    struct testpeer_draft *draft = self->draft;
    uint32_t i = draft->n_chunks++;
    assert_true(i < TESTPEER_CHUNKS);
    uint32_t bytes = 0;
    for (uint32_t c = 0; c < self->n_columns; c++) {
        uint32_t at = i * self->n_columns + c;
        draft->block_size[at] = blocks[c] ? rows * self->columns[c].row_bytes : 0;
        draft->block_codec[at] = blocks[c] ? RP_CODEC_RAW : RP_CODEC_ABSENT;
        bytes += draft->block_size[at];
    }
    uint8_t *to;
    if (own) {
        assert_true(draft->n_own < 256);
        zmq_msg_init_size(&draft->own[draft->n_own], bytes);
        to = zmq_msg_data(&draft->own[draft->n_own++]);
    } else {
        assert_int_equal(draft->n_own, 0);
        draft->packed++;
        to = text_reserve(&draft->pack, bytes);
    }
    for (uint32_t c = 0; c < self->n_columns; c++) {
        uint32_t size = draft->block_size[i * self->n_columns + c];
        if (size)
            memcpy(to, blocks[c], size);
        to += size;
    }
    draft->chunk_number[i] = ++self->chunk;
    draft->chunk_step[i] = self->step;
    draft->chunk_length[i] = rows;
    draft->chunk_episode[i] = self->episode;
    self->step += rows;
    return self->chunk;
}

void testpeer_place(struct testpeer *self, uint64_t place)
{
    self->draft->place[self->draft->n_own - 1] = place;
    self->draft->placed = true;
}

void testpeer_item(struct testpeer *self, uint32_t layout, uint64_t key, double priority, uint64_t chunk,
                   uint32_t offset, uint32_t length)
{
    struct testpeer_draft *draft = self->draft;
    uint32_t i = draft->n_items++, run = draft->n_runs;
    assert_true(i < TESTPEER_ITEMS);
    draft->item_key[i] = key;
    draft->item_priority[i] = priority;
    draft->item_chunk[i] = chunk;
    draft->item_offset[i] = offset;
    draft->item_length[i] = length;
    draft->item_group[i] = self->group;
    draft->grouped = draft->grouped || self->group;
    uint64_t number = ++*self->layouts[layout].items;
    if (run && draft->run_layout[run - 1] == layout && draft->run_policy[run - 1] == self->policy) {
        draft->run_items[run - 1]++;
        return;
    }
    draft->run_layout[run] = layout;
    draft->run_items[run] = 1;
    draft->run_first[run] = number;
    draft->run_policy[run] = self->policy;
    draft->n_runs++;
}

static void copy_frame(zmq_msg_t *to, const void *data, size_t size)
{
    assert_int_equal(zmq_msg_init_size(to, size), 0);
    if (size)
        memcpy(zmq_msg_data(to), data, size);
}

static void send_frames(struct testpeer *self, const struct testpeer_sent *sent)
{
    for (uint32_t i = 0; i < sent->n; i++) {
        zmq_msg_t frame;
        copy_frame(&frame, zmq_msg_data(&sent->frames[i]), zmq_msg_size(&sent->frames[i]));
        if (i == 0)
            wire_patch_ingest(zmq_msg_data(&frame), self->session, self->epoch);
        assert_true(zmq_msg_send(&frame, self->ingest, i + 1 < sent->n ? ZMQ_SNDMORE : 0) >= 0);
    }
    if (self->embed)
        self->embed->due++;
}

static void write_header(struct testpeer *self, struct text *header)
{
    struct testpeer_draft *draft = self->draft;
    struct wire_ingest_out out = {
        .session = self->session,
        .epoch = self->epoch,
        .number = self->number,
        .oldest_chunk = self->oldest_chunk,
        .layouts = draft->layouts.size ? draft->layouts.data : NULL,
        .layouts_size = draft->layouts.size,
        .n_chunks = draft->n_chunks,
        .n_columns = self->n_columns,
        .packed = draft->packed,
        .chunk_number = draft->chunk_number,
        .chunk_step = draft->chunk_step,
        .chunk_length = draft->chunk_length,
        .chunk_episode = draft->chunk_episode,
        .block_size = draft->block_size,
        .block_codec = draft->block_codec,
        .place = draft->placed ? draft->place : NULL,
        .n_runs = draft->n_runs,
        .run_layout = draft->run_layout,
        .run_items = draft->run_items,
        .run_first = draft->run_first,
        .run_policy = draft->run_policy,
        .n_items = draft->n_items,
        .item_key = draft->item_key,
        .item_chunk = draft->item_chunk,
        .item_priority = draft->item_priority,
        .item_offset = draft->item_offset,
        .item_length = draft->item_length,
        .item_group = draft->grouped ? draft->item_group : NULL,
    };
    wire_write_ingest(header, &out);
    assert_false(header->failed);
}

uint64_t testpeer_push(struct testpeer *self)
{
    struct testpeer_draft *draft = self->draft;
    struct testpeer_sent *sent = calloc(1, sizeof *sent);
    struct text header = {0};
    sent->number = ++self->number;
    write_header(self, &header);
    sent->frames = calloc(2 + draft->n_own, sizeof *sent->frames);
    copy_frame(&sent->frames[sent->n++], header.data, header.size);
    text_fini(&header);
    if (draft->packed)
        copy_frame(&sent->frames[sent->n++], draft->pack.data, draft->pack.size);
    for (uint32_t i = 0; i < draft->n_own; i++) {
        zmq_msg_init(&sent->frames[sent->n]);
        zmq_msg_move(&sent->frames[sent->n++], &draft->own[i]);
    }
    for (uint32_t i = 0; i < sent->n; i++)
        sent->bytes += zmq_msg_size(&sent->frames[i]);
    for (uint32_t i = 0; draft->placed && !self->frames && i < draft->n_own; i++)
        zmq_msg_close(&sent->frames[--sent->n]);
    draft->placed = draft->grouped = false;
    self->sent_bytes += sent->bytes;
    draft->pack.size = draft->layouts.size = 0;
    draft->n_chunks = draft->packed = draft->n_items = draft->n_runs = draft->n_own = 0;
    if (!self->lose)
        send_frames(self, sent);
    *self->sent_end = sent;
    self->sent_end = &sent->next;
    if (!self->keep && !self->lose)
        testpeer_forget_sent(self);
    return self->number;
}

void testpeer_resend(struct testpeer *self, uint64_t received)
{
    for (struct testpeer_sent *sent = self->sent; sent; sent = sent->next)
        if (sent->number > received)
            send_frames(self, sent);
}

void testpeer_insert(struct testpeer *self, const char *table, uint64_t first_key, uint32_t n, double priority)
{
    uint32_t layout = testpeer_plain(self, table);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = first_key + i;
        const void *blocks[] = {&key};
        testpeer_item(self, layout, key, priority, testpeer_chunk(self, 1, blocks, false), 0, 1);
    }
    self->oldest_chunk = self->chunk + 1;
    testpeer_push(self);
}

void testpeer_inserted(struct testpeer *self, const char *table, uint64_t first_key, uint32_t n, double priority)
{
    testpeer_insert(self, table, first_key, n, priority);
    embed_settle(self->embed);
}

void testpeer_pushed(struct testpeer *self)
{
    testpeer_push(self);
    embed_settle(self->embed);
}

uint8_t testpeer_known_byte(uint32_t column, uint64_t step, uint32_t i)
{
    return (uint8_t)(((step << 20) + (column << 16) + i + 1) * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

uint64_t testpeer_known(struct testpeer *self, uint32_t rows, bool own)
{
    uint8_t *blocks[TESTPEER_COLUMNS];
    for (uint32_t c = 0; c < self->n_columns; c++) {
        uint32_t width = self->columns[c].row_bytes;
        blocks[c] = malloc((size_t)rows * width + 1);
        for (uint32_t i = 0; i < rows * width; i++)
            blocks[c][i] = testpeer_known_byte(c, self->step + i / width, i % width);
    }
    uint64_t chunk = testpeer_chunk(self, rows, (const void *const *)blocks, own);
    for (uint32_t c = 0; c < self->n_columns; c++)
        free(blocks[c]);
    return chunk;
}

void testpeer_insert_large(struct testpeer *self, const char *table, uint64_t key, uint32_t bytes, bool own)
{
    uint32_t layout = testpeer_plain(self, table);
    assert_int_equal(self->columns[0].row_bytes, bytes);
    testpeer_item(self, layout, key, 1.0, testpeer_known(self, 1, own), 0, 1);
    self->oldest_chunk = self->chunk + 1;
    testpeer_push(self);
}
