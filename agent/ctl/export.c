/* Exports the items of a table in files as lines of JSON: each item becomes the reply that a broker would have sent, and is
 * decoded like one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/client/sampler/batch.h"
#include "agent/ctl/ctl.h"
#include "broker/disk/image.h"
#include "proto/base/error.h"
#include "proto/wire/pb.h"
#include "proto/wire/wire.h"
#include "replay/types.h"

/* Items whose chunks are read together. */
#define AT_ONCE 256u

struct exporter {
    struct ctl *ctl;
    const struct folder *folder;
    FILE *out;
    struct batch_pool *pool;
    struct batch_decoder *decoder;
    int64_t now_ns;
};

/* Distinct chunks of some items, in the order of their places in the files, with their part of the reply. */
struct loaded {
    uint64_t *at;
    uint32_t n, read, capacity;
    uint32_t *length, *blocks, *block_size, *session;
    uint64_t *step;
    uint8_t *block_column, *block_codec;
    uint32_t n_blocks, blocks_capacity;
    uint8_t *data;
    size_t bytes, room;
};

static void loaded_fini(struct loaded *self)
{
    void *const arrays[] = {self->at,   self->length,       self->blocks,      self->block_size, self->session,
                            self->step, self->block_column, self->block_codec, self->data};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
}

static bool grow(void **array, size_t n, size_t width)
{
    void *larger = realloc(*array, (n ? n : 1) * width);
    if (larger)
        *array = larger;
    return larger != NULL;
}

static rp_status take_chunk(void *ctx, uint64_t at, const struct chunk_view *chunk, rp_error *err)
{
    struct loaded *self = ctx;
    uint32_t columns = chunk->head->columns, i = self->read++;
    (void)at;
    if (self->n_blocks + columns > self->blocks_capacity) {
        uint32_t n = (self->n_blocks + columns) * 2;
        if (!grow((void **)&self->block_size, n, 4) || !grow((void **)&self->block_column, n, 1) ||
            !grow((void **)&self->block_codec, n, 1))
            return err_set(err, RP_NO_MEMORY, "no memory to export");
        self->blocks_capacity = n;
    }
    if (self->bytes + chunk->head->bytes > self->room) {
        size_t room = (self->bytes + chunk->head->bytes) * 2;
        if (!grow((void **)&self->data, room, 1))
            return err_set(err, RP_NO_MEMORY, "no memory to export");
        self->room = room;
    }
    self->length[i] = chunk->head->length;
    self->blocks[i] = columns;
    self->step[i] = chunk->head->step;
    self->session[i] = chunk->head->session;
    for (uint32_t c = 0; c < columns; c++) {
        memcpy(&self->block_size[self->n_blocks], chunk->sizes + (size_t)c * 4, 4);
        self->block_codec[self->n_blocks] = chunk->codecs[c];
        self->block_column[self->n_blocks++] = (uint8_t)c;
    }
    memcpy(self->data + self->bytes, chunk->data, chunk->head->bytes);
    self->bytes += chunk->head->bytes;
    return RP_OK;
}

static int by_place(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static rp_status load(const struct exporter *self, const struct image_item *const *items, uint32_t n,
                      struct loaded *out, rp_error *err)
{
    uint64_t total = 0;
    *out = (struct loaded){0};
    for (uint32_t i = 0; i < n; i++)
        total += items[i]->n;
    bool ok = grow((void **)&out->at, total, 8) && grow((void **)&out->length, total, 4) &&
              grow((void **)&out->blocks, total, 4) && grow((void **)&out->step, total, 8) &&
              grow((void **)&out->session, total, 4);
    if (!ok)
        return err_set(err, RP_NO_MEMORY, "no memory to export");
    uint64_t used = 0;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(out->at + used, image_chunks(items[i]), items[i]->n * sizeof(uint64_t));
        used += items[i]->n;
    }
    qsort(out->at, used, sizeof *out->at, by_place);
    for (uint64_t i = 0; i < used; i++)
        if (i == 0 || out->at[i] != out->at[i - 1])
            out->at[out->n++] = out->at[i];
    return chunks_read(self->folder, out->at, out->n, take_chunk, out, err);
}

static uint32_t place_of(const struct loaded *self, uint64_t at)
{
    const uint64_t *found = bsearch(&at, self->at, self->n, sizeof at, by_place);
    return found ? (uint32_t)(found - self->at) : 0;
}

/* The parts of a reply with one item. */
struct parts {
    struct pb_writer layouts, data, sizes, columns, codecs;
    uint32_t *length, *blocks, n_blocks, session;
    uint64_t step;
};

static void add(struct pb_writer *to, const void *data, size_t size)
{
    uint8_t *at = pb_reserve(to, size);
    if (at && size)
        memcpy(at, data, size);
}

static bool parts_init(struct parts *self, const struct image_item *item, const struct loaded *from,
                       const uint64_t *offsets, const uint32_t *first_block)
{
    *self = (struct parts){.length = calloc(item->n, 4), .blocks = calloc(item->n, 4)};
    size_t packed = replay__layout__get_packed_size(item->layout->wire);
    pb_tag(&self->layouts, 20, PB_BYTES);
    pb_varint(&self->layouts, packed);
    uint8_t *at = pb_reserve(&self->layouts, packed);
    if (at)
        replay__layout__pack(item->layout->wire, at);
    for (uint32_t c = 0; self->length && self->blocks && c < item->n; c++) {
        uint32_t i = place_of(from, image_chunks(item)[c]), b = first_block[i], n = from->blocks[i];
        self->length[c] = from->length[i];
        self->blocks[c] = n;
        self->n_blocks += n;
        if (c == 0) {
            self->step = from->step[i] + item->offset;
            self->session = from->session[i];
        }
        add(&self->data, from->data + offsets[i], (size_t)(offsets[i + 1] - offsets[i]));
        add(&self->sizes, from->block_size + b, (size_t)n * 4);
        add(&self->columns, from->block_column + b, n);
        add(&self->codecs, from->block_codec + b, n);
    }
    return self->length && self->blocks && !self->layouts.failed && !self->data.failed && !self->sizes.failed &&
           !self->columns.failed && !self->codecs.failed;
}

static void parts_fini(struct parts *self)
{
    struct pb_writer *const writers[] = {&self->layouts, &self->data, &self->sizes, &self->columns, &self->codecs};
    for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++)
        pb_writer_fini(writers[i]);
    free(self->length);
    free(self->blocks);
}

static void write_reply(const struct exporter *self, const struct image_item *item, const struct parts *parts,
                        struct pb_writer *frame)
{
    uint64_t age = self->now_ns > item->insert_ns ? (uint64_t)(self->now_ns - item->insert_ns) : 0;
    uint32_t zero = 0;
    double probability = 0;
    struct wire_sampled_out out = {.id = 1,
                                   .n_items = 1,
                                   .n_chunks = item->n,
                                   .n_blocks = parts->n_blocks,
                                   .n_chunk_refs = item->n,
                                   .key = &item->key,
                                   .age_ns = &age,
                                   .policy = &item->policy,
                                   .step = &parts->step,
                                   .priority = &item->priority,
                                   .probability = &probability,
                                   .times_sampled = &item->times_sampled,
                                   .session = &parts->session,
                                   .layout = &zero,
                                   .offset = &item->offset,
                                   .length = &item->length,
                                   .chunks = &item->n,
                                   .chunk_length = parts->length,
                                   .chunk_blocks = parts->blocks,
                                   .block_size = (const uint32_t *)(const void *)parts->sizes.data,
                                   .block_column = parts->columns.data,
                                   .block_codec = parts->codecs.data,
                                   .n_block_columns = parts->n_blocks,
                                   .packed = item->n,
                                   .layouts = parts->layouts.data,
                                   .layouts_size = parts->layouts.size,
                                   .table_size = 1};
    wire_write_sampled(frame, &out);
}

static rp_status decode(const struct exporter *self, const struct pb_writer *frame, const struct parts *parts,
                        struct rp_batch **out, rp_error *err)
{
    struct wire_reply reply;
    struct wire_sampled view;
    const struct batch_frame payload = {parts->data.data, parts->data.size};
    RP_TRY(wire_read_reply(frame->data, frame->size, &reply, err));
    RP_TRY(wire_read_sampled(reply.data, reply.size, &view, err));
    return batch_decode(self->decoder, &(struct batch_reply){&view, reply.text, &payload, 1}, out, err);
}

/* Writes one item: makes a reply with its chunks, decodes it into a batch, and prints that as a line. */
static rp_status export_one(const struct exporter *self, const struct image_item *item, const struct loaded *from,
                            const uint64_t *offsets, const uint32_t *first_block, rp_error *err)
{
    struct parts parts;
    struct pb_writer frame = {0};
    struct rp_batch *batch = NULL;
    bool ok = parts_init(&parts, item, from, offsets, first_block);
    if (ok)
        write_reply(self, item, &parts, &frame);
    rp_status status = ok && !frame.failed ? decode(self, &frame, &parts, &batch, err)
                                           : err_set(err, RP_NO_MEMORY, "no memory to export");
    if (status == RP_OK) {
        struct json json = {0};
        admin_json_item(&json, batch, 0, self->ctl->given & CTL_VALUES ? self->ctl->values : UINT32_MAX);
        char *text = json_take(&json);
        if (!text || fprintf(self->out, "%s\n", text) < 0)
            status = err_set(err, RP_IO, "cannot write: %s", text ? strerror(errno) : "no memory");
        free(text);
    }
    rp_batch_release(&batch);
    pb_writer_fini(&frame);
    parts_fini(&parts);
    return status;
}

static rp_status export_some(const struct exporter *self, const struct image_item *const *items, uint32_t n,
                             rp_error *err)
{
    struct loaded loaded;
    rp_status status = load(self, items, n, &loaded, err);
    uint64_t *offsets = calloc((size_t)loaded.n + 1, sizeof *offsets);
    uint32_t *first_block = calloc((size_t)loaded.n + 1, sizeof *first_block);
    if (status == RP_OK && (!offsets || !first_block))
        status = err_set(err, RP_NO_MEMORY, "no memory to export");
    for (uint32_t i = 0; status == RP_OK && i < loaded.n; i++) {
        offsets[i + 1] = offsets[i];
        first_block[i + 1] = first_block[i] + loaded.blocks[i];
        for (uint32_t b = first_block[i]; b < first_block[i + 1]; b++)
            offsets[i + 1] += loaded.block_size[b];
    }
    for (uint32_t i = 0; status == RP_OK && i < n; i++)
        status = export_one(self, items[i], &loaded, offsets, first_block, err);
    free(offsets);
    free(first_block);
    loaded_fini(&loaded);
    return status;
}

static int by_insertion(const void *a, const void *b)
{
    const struct image_item *x = *(const struct image_item *const *)a, *y = *(const struct image_item *const *)b;
    return (x->insert_ns > y->insert_ns) - (x->insert_ns < y->insert_ns);
}

static rp_status export_table(const struct exporter *self, const struct image_table *table, rp_error *err)
{
    const struct image_item **items = calloc(table->size ? table->size : 1, sizeof(*items));
    if (!items)
        return err_set(err, RP_NO_MEMORY, "no memory to export %u items", table->size);
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < table->high && n < table->size; slot++)
        if (table->items[slot].n)
            items[n++] = &table->items[slot];
    qsort(items, n, sizeof(*items), by_insertion);
    uint64_t most = self->ctl->given & CTL_LIMIT && self->ctl->limit ? self->ctl->limit : n;
    rp_status status = RP_OK;
    for (uint32_t i = 0; status == RP_OK && i < n && i < most; i += AT_ONCE) {
        uint64_t left = (most < n ? most : n) - i;
        status = export_some(self, items + i, left < AT_ONCE ? (uint32_t)left : AT_ONCE, err);
    }
    free(items);
    return status;
}

static const struct image_table *find_table(const struct image *image, const char *name, rp_error *err)
{
    if (!name && image->n_tables == 1)
        return &image->tables[0];
    for (uint32_t i = 0; name && i < image->n_tables; i++)
        if (strcmp(image->tables[i].name, name) == 0)
            return &image->tables[i];
    char names[160] = "";
    for (uint32_t i = 0; i < image->n_tables && strlen(names) < 100; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s'%.40s'", i ? ", " : "",
                 image->tables[i].name);
    if (name)
        err_set(err, RP_NOT_FOUND, "no table '%.64s' in these files: there are %s", name, names);
    else
        err_set(err, RP_INVALID_ARGUMENT, "name a table with --table; there are %s", names[0] ? names : "none");
    return NULL;
}

int ctl_export(struct ctl *ctl, const struct image *image, const struct folder *folder)
{
    rp_error err = {0};
    const struct image_table *table = find_table(image, ctl->table, &err);
    if (!table)
        return ctl_fail(ctl, &err);
    bool to_file = ctl->save && strcmp(ctl->save, "-") != 0;
    struct exporter self = {.ctl = ctl, .folder = folder, .out = to_file ? fopen(ctl->save, "w") : stdout};
    self.now_ns = image->clock_ns;
    if (!self.out) {
        err_set(&err, RP_IO, "cannot write %s: %s", ctl->save, strerror(errno));
        return ctl_fail(ctl, &err);
    }
    const struct batch_options options = {.beta = 0};
    self.pool = batch_pool_new(1);
    self.decoder = self.pool ? batch_decoder_new(self.pool, &options) : NULL;
    rp_status status =
        self.decoder ? export_table(&self, table, &err) : err_set(&err, RP_NO_MEMORY, "no memory to export");
    batch_decoder_destroy(&self.decoder);
    if (self.pool)
        batch_pool_unref(&self.pool);
    if (to_file && fclose(self.out) != 0 && status == RP_OK)
        status = err_set(&err, RP_IO, "cannot write %s: %s", ctl->save, strerror(errno));
    return status == RP_OK ? CTL_OK : ctl_fail(ctl, &err);
}
