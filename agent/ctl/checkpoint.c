/* The files of a broker, without a broker: which there are, whether they are sound, what a broker would start with, and the items of a
 * table as lines of JSON. For these, each item becomes the reply that a broker would have sent, and is decoded like one. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/client/sampler/batch.h"
#include "agent/ctl/ctl.h"
#include "broker/checkpoint/loading.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/config/schema.h"
#include "proto/wire/wire.h"

/* Bytes that are read at a time: the chunks of neighbouring items lie close together. */
#define PIECE_BYTES (256u << 10)

struct exporter {
    struct ctl *ctl;
    const struct folder *folder;
    const struct layouts *layouts;
    FILE *out;
    struct reader reader; /* of the segment of the last chunk */
    struct batch_pool *pool;
    struct batch_decoder *decoder;
    int64_t now_ns;
};

/* The parts of a reply with one item. */
struct parts {
    struct text data, sizes, columns, codecs, length, blocks;
    uint32_t n_blocks, session;
    uint64_t step;
};

static void parts_fini(struct parts *self)
{
    struct text *const writers[] = {&self->data,   &self->sizes,  &self->columns,
                                    &self->codecs, &self->length, &self->blocks};
    for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++)
        text_fini(writers[i]);
}

static rp_status add_chunk(struct parts *self, const struct chunk_view *chunk, rp_error *err)
{
    uint32_t columns = chunk->head->columns;
    self->n_blocks += columns;
    text_put(&self->length, &chunk->head->length, 4);
    text_put(&self->blocks, &columns, 4);
    text_put(&self->sizes, chunk->sizes, (size_t)columns * 4);
    text_put(&self->codecs, chunk->codecs, columns);
    text_put(&self->data, chunk->data, chunk->head->bytes);
    for (uint32_t c = 0; c < columns; c++)
        text_put(&self->columns, &(uint8_t){(uint8_t)c}, 1);
    return !self->data.failed && !self->sizes.failed && !self->columns.failed && !self->codecs.failed &&
                   !self->length.failed && !self->blocks.failed
               ? RP_OK
               : err_set(err, RP_NO_MEMORY, "no memory to export");
}

static rp_status open_segment(struct exporter *self, uint64_t number, rp_error *err)
{
    if (self->reader.number == number)
        return RP_OK;
    reader_close(&self->reader);
    RP_TRY(reader_open(&self->reader, self->folder, DISK_SEGMENT, number, err));
    self->reader.piece = PIECE_BYTES;
    return RP_OK;
}

static rp_status read_chunks(struct exporter *self, const struct item *item, struct parts *out, rp_error *err)
{
    for (uint32_t c = 0; c < item->span.n; c++) {
        struct chunk_view chunk;
        uint64_t at = offline_places(item)[c];
        RP_TRY(open_segment(self, disk_number(at), err));
        RP_TRY(reader_chunk(&self->reader, disk_offset(at), &chunk, err));
        if (c == 0) {
            out->step = chunk.head->step + item->span.offset;
            out->session = chunk.head->session;
        }
        RP_TRY(add_chunk(out, &chunk, err));
    }
    return RP_OK;
}

static void write_reply(const struct exporter *self, const struct item *item, const struct parts *parts,
                        struct text *frame)
{
    uint64_t age = (uint64_t)item_age(item, self->now_ns);
    const struct layout *layout = layouts_at(self->layouts, item->span.layout);
    uint32_t zero = 0;
    double probability = 0;
    struct wire_sampled_out out = {.id = 1,
                                   .n_items = 1,
                                   .n_chunks = item->span.n,
                                   .n_blocks = parts->n_blocks,
                                   .n_chunk_refs = item->span.n,
                                   .key = &item->key,
                                   .age_ns = &age,
                                   .policy = &item->policy,
                                   .step = &parts->step,
                                   .priority = &item->priority,
                                   .probability = &probability,
                                   .times_sampled = &item->times_sampled,
                                   .session = &parts->session,
                                   .layout = &zero,
                                   .offset = &item->span.offset,
                                   .length = &item->span.length,
                                   .chunks = &item->span.n,
                                   .chunk_length = (const uint32_t *)(const void *)parts->length.data,
                                   .chunk_blocks = (const uint32_t *)(const void *)parts->blocks.data,
                                   .block_size = (const uint32_t *)(const void *)parts->sizes.data,
                                   .block_column = parts->columns.bytes,
                                   .block_codec = parts->codecs.bytes,
                                   .n_block_columns = parts->n_blocks,
                                   .packed = item->span.n,
                                   .layouts = layout->wire,
                                   .layouts_size = layout->wire_size,
                                   .table_size = 1};
    wire_write_sampled(frame, &out);
}

static rp_status decode(const struct exporter *self, const struct text *frame, const struct parts *parts,
                        struct rp_batch **out, rp_error *err)
{
    struct wire_reply reply;
    struct wire_sampled view;
    const struct batch_frame payload = {parts->data.data, parts->data.size};
    RP_TRY(wire_read_reply(frame->data, frame->size, &reply, err));
    RP_TRY(wire_read_sampled(reply.data, reply.size, &view, err));
    return batch_decode(self->decoder, &(struct batch_reply){&view, reply.text, &payload, 1, NULL, 0}, out, err);
}

/* Makes a reply with the item's chunks, decodes it into a batch, and prints that as a line. */
static rp_status export_item(struct exporter *self, const struct item *item, rp_error *err)
{
    struct parts parts = {0};
    struct text frame = {0};
    struct rp_batch *batch = NULL;
    rp_status status = read_chunks(self, item, &parts, err);
    if (status == RP_OK) {
        write_reply(self, item, &parts, &frame);
        status = decode(self, &frame, &parts, &batch, err);
    }
    if (status == RP_OK) {
        struct json json = {0};
        admin_json_item(&json, batch, 0, self->ctl->given & CTL_VALUES ? self->ctl->values : UINT32_MAX);
        char *text = json_need(&json);
        if (fprintf(self->out, "%s\n", text) < 0)
            status = err_set(err, RP_IO, "cannot write: %s", strerror(errno));
        free(text);
    }
    rp_batch_release(&batch);
    text_fini(&frame);
    parts_fini(&parts);
    return status;
}

static int by_insertion(const void *a, const void *b)
{
    const struct item *x = *(const struct item *const *)a, *y = *(const struct item *const *)b;
    return (x->insert_ns > y->insert_ns) - (x->insert_ns < y->insert_ns);
}

static rp_status export_table(struct exporter *self, const struct contents *in, rp_error *err)
{
    const struct item **items = calloc(in->size + 1, sizeof(*items));
    if (!items)
        return err_set(err, RP_NO_MEMORY, "no memory to export %u items", in->size);
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < in->high; slot++)
        if (in->items[slot].span.n)
            items[n++] = &in->items[slot];
    qsort(items, n, sizeof(*items), by_insertion);
    uint64_t most = self->ctl->given & CTL_LIMIT && self->ctl->limit ? self->ctl->limit : n;
    rp_status status = RP_OK;
    for (uint32_t i = 0; status == RP_OK && i < n && i < most; i++)
        status = export_item(self, items[i], err);
    free(items);
    return status;
}

static const struct table *find_table(const struct loading *loading, const char *name, rp_error *err)
{
    if (!name && loading->n_tables == 1)
        return loading->tables[0].table;
    for (uint32_t i = 0; name && i < loading->n_tables; i++)
        if (strcmp(loading->tables[i].table->name, name) == 0)
            return loading->tables[i].table;
    char names[160] = "";
    for (uint32_t i = 0; i < loading->n_tables && strlen(names) < 100; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s'%.40s'", i ? ", " : "",
                 loading->tables[i].table->name);
    if (name)
        err_set(err, RP_NOT_FOUND, "no table '%.64s' in these files: there are %s", name, names);
    else
        err_set(err, RP_INVALID_ARGUMENT, "name a table with --table; there are %s", names[0] ? names : "none");
    return NULL;
}

static int export_items(struct ctl *ctl, struct offline *offline)
{
    const struct loading *loading = &offline->loading;
    const struct table *table = find_table(loading, ctl->table, &ctl->err);
    if (!table)
        return ctl_fail(ctl);
    bool to_file = ctl->save && strcmp(ctl->save, "-") != 0;
    struct exporter self = {.ctl = ctl,
                            .folder = loading->folder,
                            .layouts = &offline->layouts,
                            .out = to_file ? fopen(ctl->save, "w") : stdout,
                            .reader = {.file = -1},
                            .now_ns = loading->files.start.wall_ns};
    if (!self.out) {
        err_set(&ctl->err, RP_IO, "cannot write %s: %s", ctl->save, strerror(errno));
        return ctl_fail(ctl);
    }
    const struct batch_options options = {.beta = 0};
    self.pool = batch_pool_new(1, NULL);
    self.decoder = self.pool ? batch_decoder_new(self.pool, &options) : NULL;
    rp_status status = self.decoder ? export_table(&self, &table->in, &ctl->err)
                                    : err_set(&ctl->err, RP_NO_MEMORY, "no memory to export");
    reader_close(&self.reader);
    batch_decoder_destroy(&self.decoder);
    if (self.pool)
        batch_pool_unref(&self.pool);
    if (to_file && fclose(self.out) != 0 && status == RP_OK)
        status = err_set(&ctl->err, RP_IO, "cannot write %s: %s", ctl->save, strerror(errno));
    return status == RP_OK ? CTL_OK : ctl_fail(ctl);
}

static void show_tables(const struct loading *loading)
{
    static const char *const titles[] = {"table", ">items", ">inserts", ">samples", ">deletes", "sampler", "remover"};
    struct grid grid;
    grid_init(&grid, titles, 7);
    for (uint32_t i = 0; i < loading->n_tables; i++) {
        const struct loaded_table *table = &loading->tables[i];
        format_buffer a;
        char clean[260];
        grid_add(&grid, format_clean(clean, sizeof clean, table->table->name));
        grid_add(&grid, format_count(a, table->table->in.size));
        grid_add(&grid, format_count(a, table->limiter.inserts));
        grid_add(&grid, format_count(a, table->limiter.samples));
        grid_add(&grid, format_count(a, table->limiter.deletes));
        grid_add(&grid, format_clean(clean, sizeof clean, table->info->sampler));
        grid_add(&grid, format_clean(clean, sizeof clean, table->info->remover));
    }
    grid_print(&grid, stdout);
}

static void show_rest(const struct offline *offline)
{
    format_buffer a;
    char clean[260];
    const struct params *params = &offline->params;
    printf("\nsessions %u, answered requests %u, samples that may be asked for again %u\n",
           offline->loading.sessions.count, offline->replies.list.count, offline->loading.selections.count);
    for (uint32_t i = 0; i < params->n_slots; i++)
        printf("slot %s: version %llu, %s\n", format_clean(clean, sizeof clean, params->slots[i].name),
               (unsigned long long)params->slots[i].version, format_bytes(a, param_slot_bytes(&params->slots[i])));
    for (uint32_t i = 0; i < params->n_counters; i++)
        printf("counter %s: %lld\n", format_clean(clean, sizeof clean, params->counters[i].name),
               (long long)params->counters[i].value);
}

static void table_json(struct json *json, const struct loaded_table *table)
{
    json_open(json, '{');
    json_text(json, "name", table->table->name);
    json_count(json, "size", table->table->in.size);
    json_count(json, "inserts", table->limiter.inserts);
    json_count(json, "samples", table->limiter.samples);
    json_count(json, "deletes", table->limiter.deletes);
    json_count(json, "total_inserts", table->table->stats.total_inserts);
    json_count(json, "total_samples", table->table->stats.total_samples);
    json_close(json, '}');
}

static int show_json(const struct offline *offline)
{
    const struct loading *loading = &offline->loading;
    const struct params *params = &offline->params;
    struct json json = {0};
    json_open(&json, '{');
    json_count(&json, "checkpoint", loading->files.checkpoint);
    json_count(&json, "journal_entries", loading->files.journal_entries);
    json_count(&json, "sessions", loading->sessions.count);
    json_begin(&json, "tables", '[');
    for (uint32_t i = 0; i < loading->n_tables; i++)
        table_json(&json, &loading->tables[i]);
    json_close(&json, ']');
    json_begin(&json, "slots", '{');
    for (uint32_t i = 0; i < params->n_slots; i++)
        json_count(&json, params->slots[i].name, params->slots[i].version);
    json_close(&json, '}');
    json_begin(&json, "counters", '{');
    for (uint32_t i = 0; i < params->n_counters; i++) {
        json_key(&json, params->counters[i].name);
        json_signed(&json, params->counters[i].value);
    }
    json_close(&json, '}');
    json_close(&json, '}');
    return ctl_print_text(&json);
}

static int show(struct ctl *ctl, struct offline *offline)
{
    const struct load *files = &offline->loading.files;
    if (ctl->json)
        return show_json(offline);
    char made[32];
    format_buffer entries;
    ctl_when(made, sizeof made, files->start.wall_ns);
    if (files->checkpoint)
        printf("checkpoint %llu, ", (unsigned long long)files->checkpoint);
    printf("%s journal entries after it; last file begun %s\n\n", format_count(entries, files->journal_entries), made);
    show_tables(&offline->loading);
    show_rest(offline);
    return CTL_OK;
}

/* ---- asking a broker ---- */

static void print_made(const Replay__CheckpointReply *made, const char *who)
{
    format_buffer items, bytes, took, rate;
    char kind[64] = "whole", folder[512];
    if (made->based_on)
        snprintf(kind, sizeof kind, "a change of %llu", (unsigned long long)made->based_on);
    printf("%scheckpoint %llu in %s: %s, %s items; %s written in %s (%s/s)\n", who, (unsigned long long)made->number,
           format_clean(folder, sizeof folder, made->folder), kind, format_count(items, made->items),
           format_bytes(bytes, made->written_bytes), format_time(took, made->took_ns),
           format_bytes(rate, made->took_ns ? (uint64_t)((double)made->written_bytes * 1e9 / (double)made->took_ns)
                                            : made->written_bytes));
}

/* Each shard has its own folder and its own numbers. */
static void print_shards(const Replay__Shards *shards)
{
    for (size_t i = 0; i < shards->n_shard; i++) {
        char who[32];
        snprintf(who, sizeof who, "shard %u: ", shards->shard[i]->shard);
        if (shards->shard[i]->checkpoint)
            print_made(shards->shard[i]->checkpoint, who);
    }
}

static int make_one(struct ctl *ctl)
{
    int64_t timeout_ms = ctl->given & CTL_TIMEOUT ? ctl->timeout_ms : -1;
    if (rp_admin_checkpoint(ctl->client, timeout_ms, &ctl->reply, &ctl->err) != RP_OK)
        return ctl_fail(ctl);
    const Replay__CheckpointReply *made = ADMIN_AS(CheckpointReply, ctl->reply);
    if (ctl->json)
        return ctl_print_json(ctl->reply);
    if (made->shards)
        print_shards(made->shards);
    else
        print_made(made, "");
    return CTL_OK;
}

/* ---- a folder's files ---- */

/* One file as a line of the list. */
struct listed {
    char kind[48], made[32], holds[64], state[160];
    uint64_t items;
};

static void describe(const struct folder *folder, const struct folder_file *file, bool all, struct listed *out,
                     struct verify_result *found, bool *sound)
{
    rp_error err = {0};
    *out = (struct listed){.made = "-", .holds = "-"};
    snprintf(out->kind, sizeof out->kind, "%s", file->kind == DISK_CHECKPOINT ? "checkpoint" : "segment");
    *found = (struct verify_result){0};
    *sound = !all && file->kind == DISK_SEGMENT;
    if (*sound) { /* segments are large: only verify reads them */
        ctl_when(out->made, sizeof out->made, file->changed_ns);
        return;
    }
    if (disk_verify_file(folder, file->kind, file->number, found, &err) != RP_OK) {
        snprintf(out->state, sizeof out->state, "%.150s", err.text);
        *sound = err.status == RP_NOT_FOUND; /* the broker has removed it meanwhile */
        return;
    }
    format_buffer a, b;
    ctl_when(out->made, sizeof out->made, found->start.wall_ns);
    *sound = !found->damaged;
    snprintf(out->state, sizeof out->state, "%.150s", found->damaged || found->torn ? found->text : all ? "sound" : "");
    if (file->kind == DISK_CHECKPOINT) {
        if (found->checkpoint.base)
            snprintf(out->kind, sizeof out->kind, "change of %llu", (unsigned long long)found->checkpoint.base);
        else
            snprintf(out->kind, sizeof out->kind, "whole");
        out->items = found->end.items;
        snprintf(out->holds, sizeof out->holds, "%s items, %s", format_count(a, found->end.items),
                 format_bytes(b, found->end.bytes));
    } else {
        uint64_t effects = found->entries - found->chunks;
        snprintf(out->holds, sizeof out->holds, "%s chunks, %s entries", format_count(a, found->chunks),
                 format_count(b, effects));
    }
}

static void list_json(const struct folder_file *file, const struct listed *listed, const struct verify_result *found,
                      bool sound)
{
    struct json json = {0};
    char name[64];
    folder_name(file->kind, file->number, false, name, sizeof name);
    json_open(&json, '{');
    json_text(&json, "file", name);
    json_text(&json, "kind", file->kind == DISK_CHECKPOINT ? "checkpoint" : "segment");
    json_count(&json, "number", file->number);
    json_count(&json, "bytes", file->bytes);
    json_count(&json, "records", found->records);
    json_count(&json, "entries", found->entries);
    json_count(&json, "chunks", found->chunks);
    json_count(&json, "items", listed->items);
    json_count(&json, "base", found->checkpoint.base);
    json_count(&json, "damaged_at", found->damaged_at);
    json_text(&json, "made", listed->made);
    json_flag(&json, "sound", sound);
    json_text(&json, "text", listed->state);
    json_close(&json, '}');
    ctl_print_text(&json);
}

/* ls and verify: both inspect every file; verify then checks what a broker would load from them. */
static int list(struct ctl *ctl, const struct folder *folder, bool verify)
{
    static const char *const titles[] = {">number", "kind", "made", ">size", "holds", "state"};
    struct grid grid;
    uint32_t damaged = 0;
    grid_init(&grid, titles, 6);
    for (uint32_t i = 0; i < folder->n_files; i++) {
        struct listed listed;
        struct verify_result found;
        bool sound;
        describe(folder, &folder->files[i], verify, &listed, &found, &sound);
        damaged += !sound;
        if (ctl->json) {
            list_json(&folder->files[i], &listed, &found, sound);
            continue;
        }
        format_buffer bytes;
        grid_addf(&grid, "%llu", (unsigned long long)folder->files[i].number);
        grid_add(&grid, listed.kind);
        grid_add(&grid, listed.made);
        grid_add(&grid, format_bytes(bytes, folder->files[i].bytes));
        grid_add(&grid, listed.holds);
        grid_add(&grid, listed.state);
    }
    if (!ctl->json && folder->n_files)
        grid_print(&grid, stdout);
    else if (!ctl->json)
        printf("no checkpoints and no segments in %s\n", folder->path);
    grid_fini(&grid);
    return verify && damaged ? CTL_REFUSED : CTL_OK;
}

/* Prints what was found. Returns whether there is damage. */
static bool print_notes(const struct load *files)
{
    bool damage = false;
    for (uint32_t i = 0; i < files->n_notes; i++) {
        fprintf(stderr, "%s: %s\n", files->notes[i].damage ? "damage" : "note", files->notes[i].text);
        damage |= files->notes[i].damage;
    }
    return damage;
}

/* ---- what a broker would start with ---- */

/* True if a file is gone that was there when the folder was listed. */
static bool has_lost_files(const struct folder *folder)
{
    char name[64];
    for (uint32_t i = 0; i < folder->n_files; i++) {
        folder_name(folder->files[i].kind, folder->files[i].number, false, name, sizeof name);
        if (faccessat(folder->descriptor, name, F_OK, 0) != 0)
            return true;
    }
    return false;
}

/* How often the files are read anew whose broker has removed some meanwhile. */
#define VERIFY_TRIES 5

/* Loads what a broker would start with, and checks that every chunk is there: inspecting files one by one does not find a missing
 * segment, or one that was cut between two records. */
static int verify_state(struct ctl *ctl, struct folder *folder, int tries)
{
    format_buffer items;
    struct offline offline;
    rp_error err = {0};
    offline_init(&offline);
    rp_status status = offline_load(&offline, folder, 0, false, &ctl->err), chunks = RP_OK;
    if (status == RP_OK)
        chunks = loading_read_chunks(&offline.loading, NULL, &err);
    bool notes = status != RP_OK || chunks != RP_OK || offline.loading.files.n_notes > 0;
    if (notes && tries > 1 && has_lost_files(folder) && folder_list(folder, NULL) == RP_OK) {
        offline_fini(&offline);
        return verify_state(ctl, folder, tries - 1);
    }
    bool damage = print_notes(&offline.loading.files);
    if (status != RP_OK)
        (void)ctl_fail(ctl);
    else if (chunks != RP_OK)
        fprintf(stderr, "damage: a broker would not start with this: %s\n", err.text);
    else if (!ctl->json)
        printf("\na broker would start with %s items%s\n", format_count(items, loading_items(&offline.loading)),
               damage ? ", not with all that was there" : "");
    offline_fini(&offline);
    return status != RP_OK || chunks != RP_OK || damage ? CTL_REFUSED : CTL_OK;
}

enum verb { BACKUP, LS, VERIFY, SHOW, EXPORT, VERBS };
static const char *const verbs[] = {"backup", "ls", "verify", "show", "export"};

static int with_state(struct ctl *ctl, enum verb verb, const struct folder *folder)
{
    int64_t number = 0;
    if (ctl->argc > 2 && (!schema_parse_int(ctl->argv[2], &number) || number < 1))
        return ctl_usage("'%s' is not the number of a checkpoint: see 'replay-ctl checkpoint ls %s'", ctl->argv[2],
                         ctl->argv[1]);
    struct offline offline;
    offline_init(&offline);
    rp_status status = offline_load(&offline, folder, (uint64_t)number, number != 0, &ctl->err);
    print_notes(&offline.loading.files);
    int rc = status != RP_OK ? ctl_fail(ctl) : verb == SHOW ? show(ctl, &offline) : export_items(ctl, &offline);
    offline_fini(&offline);
    return rc;
}

static int verify(struct ctl *ctl, struct folder *folder)
{
    int rc = list(ctl, folder, true);
    int loaded = folder->n_files ? verify_state(ctl, folder, VERIFY_TRIES) : CTL_OK;
    return rc != CTL_OK ? rc : loaded;
}

static int inspect(struct ctl *ctl, enum verb verb, const char *path)
{
    struct folder folder;
    int rc;
    if (folder_open(&folder, path, false, &ctl->err) != RP_OK)
        return ctl_fail(ctl);
    if (verb == LS || verb == VERIFY)
        rc = verb == LS ? list(ctl, &folder, false) : verify(ctl, &folder);
    else
        rc = with_state(ctl, verb, &folder);
    folder_close(&folder);
    return rc;
}

/* The folder of a broker, or that in which its shards have theirs. */
static int inspect_all(struct ctl *ctl, enum verb verb, const char *path)
{
    int rc = CTL_OK;
    uint32_t found = 0;
    for (uint32_t i = 0; i < WIRE_MAX_SHARDS; i++) {
        char shard[PATH_MAX];
        if (snprintf(shard, sizeof shard, "%s/shard-%u", path, i) >= (int)sizeof shard || access(shard, F_OK) != 0)
            continue;
        if (verb == EXPORT)
            return ctl_usage("'%s' has the data of shards: export one of them, such as %s", path, shard);
        if (ctl->json)
            printf("{\"shard\":%u}\n", i);
        else
            printf("%sshard %u\n", found ? "\n" : "", i);
        found++;
        int own = inspect(ctl, verb, shard);
        rc = rc != CTL_OK ? rc : own;
    }
    return found ? rc : inspect(ctl, verb, path);
}

int ctl_checkpoint(struct ctl *ctl)
{
    if (ctl->argc == 0)
        return ctl->given & (CTL_TABLE | CTL_LIMIT | CTL_VALUES | CTL_SAVE)
                   ? ctl_usage("these options go with 'checkpoint export'")
                   : make_one(ctl);
    uint32_t verb = 0;
    while (verb < VERBS && strcmp(ctl->argv[0], verbs[verb]) != 0)
        verb++;
    if (verb == VERBS) {
        const char *near = schema_nearest(ctl->argv[0], verbs, VERBS);
        return ctl_usage("'checkpoint %s' is not known: use backup, ls, verify, show or export%s%s", ctl->argv[0],
                         near ? "; did you mean " : "", near ? near : "");
    }
    if (ctl->argc < 2)
        return ctl_usage("'checkpoint %s' needs the folder: replay-ctl checkpoint %s DIR", verbs[verb], verbs[verb]);
    if (verb < SHOW && ctl->argc > 2)
        return ctl_usage("'%s' is one argument too many for: replay-ctl checkpoint %s DIR", ctl->argv[2], verbs[verb]);
    return verb == BACKUP ? ctl_backup(ctl) : inspect_all(ctl, (enum verb)verb, ctl->argv[1]);
}
