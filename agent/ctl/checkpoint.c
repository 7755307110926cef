/* The checkpoint command: asks a broker for a checkpoint, or inspects the files of a folder without a broker. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "broker/disk/image.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/config/schema.h"
#include "proto/wire/wire.h"

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
    Replay__Reply *reply = NULL;
    rp_error err = {0};
    if (admin_checkpoint(ctl->client, ctl->given & CTL_TIMEOUT ? ctl->timeout_ms : -1, &reply, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    const Replay__CheckpointReply *made = reply->checkpoint;
    int rc = CTL_OK;
    if (ctl->json) {
        rc = ctl_print_json(&made->base);
    } else if (made->shards) {
        print_shards(made->shards);
    } else {
        print_made(made, "");
    }
    replay__reply__free_unpacked(reply, NULL);
    return rc;
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
        return;
    }
    format_buffer a, b;
    ctl_when(out->made, sizeof out->made, found->start.wall_ns);
    *sound = !found->damaged;
    snprintf(out->state, sizeof out->state, "%.150s", found->damaged ? found->text : all ? "sound" : "");
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

static void list_json(const struct folder *folder, const struct folder_file *file, const struct listed *listed,
                      const struct verify_result *found, bool sound)
{
    struct json json = {0};
    char name[64];
    folder_name(file->kind, file->number, false, name, sizeof name);
    json_open(&json, '{');
    json_key(&json, "file");
    json_string(&json, name);
    json_key(&json, "kind");
    json_string(&json, file->kind == DISK_CHECKPOINT ? "checkpoint" : "segment");
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"number", file->number},         {"bytes", file->bytes},           {"records", found->records},
                   {"entries", found->entries},      {"chunks", found->chunks},        {"items", listed->items},
                   {"base", found->checkpoint.base}, {"damaged_at", found->damaged_at}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        json_key(&json, numbers[i].key);
        json_unsigned(&json, numbers[i].value);
    }
    json_key(&json, "made");
    json_string(&json, listed->made);
    json_key(&json, "sound");
    json_boolean(&json, sound);
    json_key(&json, "text");
    json_string(&json, listed->state);
    json_close(&json, '}');
    ctl_print_text(&json);
    (void)folder;
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
            list_json(folder, &folder->files[i], &listed, &found, sound);
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

static void print_notes(const struct image *image)
{
    for (uint32_t i = 0; i < image->n_notes; i++)
        fprintf(stderr, "%s: %s\n", image->notes[i].damage ? "damage" : "note", image->notes[i].text);
}

static bool has_damage(const struct image *image)
{
    for (uint32_t i = 0; i < image->n_notes; i++)
        if (image->notes[i].damage)
            return true;
    return false;
}

/* ---- what a broker would start with ---- */

/* Loads, then calls fn. */
static int with_image(struct ctl *ctl, const struct folder *folder,
                      int (*fn)(struct ctl *ctl, const struct image *image, const struct folder *folder))
{
    int64_t number = 0;
    if (ctl->argc > 2 && (!schema_parse_int(ctl->argv[2], &number) || number < 1))
        return ctl_usage("'%s' is not the number of a checkpoint: see 'replay-ctl checkpoint ls %s'", ctl->argv[2],
                         ctl->argv[1]);
    struct image image;
    rp_error err = {0};
    image_init(&image);
    rp_status status = image_load(&image, folder, (uint64_t)number, number != 0, false, &err);
    print_notes(&image);
    int rc = status == RP_OK ? fn(ctl, &image, folder) : ctl_fail(ctl, &err);
    image_fini(&image);
    return rc;
}

/* Lists the places of all chunks that a broker would read, and returns their number; out may be NULL. */
static uint64_t chunk_places(const struct image *image, uint64_t *out)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < image->n_tables; i++)
        for (uint32_t slot = 0; slot < image->tables[i].high; slot++) {
            const struct image_item *item = &image->tables[i].items[slot];
            for (uint32_t c = 0; c < item->n; c++, n++)
                if (out)
                    out[n] = image_chunks(item)[c];
        }
    for (uint32_t i = 0; i < image->n_selections; i++)
        for (uint32_t k = 0; k < image->selections[i]->n; k++) {
            const struct image_item *item = &image->selections[i]->items[k];
            for (uint32_t c = 0; c < item->n; c++, n++)
                if (out)
                    out[n] = image_chunks(item)[c];
        }
    return n;
}

static int by_place(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static rp_status pass_chunk(void *ctx, uint64_t at, const struct chunk_view *chunk, rp_error *err)
{
    (void)ctx;
    (void)at;
    (void)chunk;
    (void)err;
    return RP_OK;
}

/* Checks that every chunk is there: inspecting files one by one does not find a missing segment, or one that was cut between two
 * records. */
static rp_status check_chunks(const struct image *image, const struct folder *folder, rp_error *err)
{
    uint64_t n = chunk_places(image, NULL), *places = malloc((n + 1) * sizeof *places);
    if (!places)
        return err_set(err, RP_NO_MEMORY, "no memory for the places of %llu chunks", (unsigned long long)n);
    chunk_places(image, places);
    qsort(places, n, sizeof *places, by_place);
    rp_status status = chunks_read(folder, places, n, pass_chunk, NULL, err);
    free(places);
    return status;
}

static int verified(struct ctl *ctl, const struct image *image, const struct folder *folder)
{
    format_buffer items;
    rp_error err = {0};
    rp_status status = check_chunks(image, folder, &err);
    if (status != RP_OK)
        fprintf(stderr, "damage: a broker would not start with this: %s\n", err.text);
    else if (!ctl->json)
        printf("\na broker would start with %s items%s\n", format_count(items, image_size(image)),
               has_damage(image) ? ", not with all that was there" : "");
    return status != RP_OK || has_damage(image) ? CTL_REFUSED : CTL_OK;
}

static int verify(struct ctl *ctl, const struct folder *folder)
{
    int rc = list(ctl, folder, true);
    int loaded = folder->n_files ? with_image(ctl, folder, verified) : CTL_OK;
    return rc != CTL_OK ? rc : loaded;
}

enum verb { LS, VERIFY, SHOW, EXPORT, VERBS };
static const char *const verbs[] = {"ls", "verify", "show", "export"};

static int inspect(struct ctl *ctl, enum verb verb, const char *path)
{
    struct folder folder;
    rp_error err = {0};
    int rc;
    if (folder_open(&folder, path, false, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    if (verb == LS || verb == VERIFY)
        rc = verb == LS ? list(ctl, &folder, false) : verify(ctl, &folder);
    else
        rc = with_image(ctl, &folder, verb == SHOW ? ctl_show_image : ctl_export);
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
        return ctl_usage("'checkpoint %s' is not known: use ls, verify, show or export%s%s", ctl->argv[0],
                         near ? "; did you mean " : "", near ? near : "");
    }
    if (ctl->argc < 2)
        return ctl_usage("'checkpoint %s' needs the folder: replay-ctl checkpoint %s DIR", verbs[verb], verbs[verb]);
    if (verb < SHOW && ctl->argc > 2)
        return ctl_usage("'%s' is one argument too many for: replay-ctl checkpoint %s DIR", ctl->argv[2], verbs[verb]);
    return inspect_all(ctl, (enum verb)verb, ctl->argv[1]);
}
