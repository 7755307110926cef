/* What a broker would start with, from the files of a folder. */
#include <stdio.h>
#include <time.h>

#include "agent/ctl/ctl.h"
#include "broker/disk/image.h"
#include "proto/base/clock.h"
#include "proto/base/format.h"

void ctl_when(char *out, size_t size, int64_t wall_ns)
{
    time_t seconds = (time_t)(wall_ns / NS_PER_S);
    struct tm parts;
    if (!gmtime_r(&seconds, &parts) || strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(out, size, "-");
}

static void show_tables(const struct image *image)
{
    static const char *const titles[] = {"table", ">items", ">inserts", ">samples", ">deletes", "sampler", "remover"};
    struct grid grid;
    grid_init(&grid, titles, 7);
    for (uint32_t i = 0; i < image->n_tables; i++) {
        const struct image_table *table = &image->tables[i];
        format_buffer a;
        char clean[260];
        grid_add(&grid, format_clean(clean, sizeof clean, table->name));
        grid_add(&grid, format_count(a, table->size));
        grid_add(&grid, format_count(a, table->limiter.inserts));
        grid_add(&grid, format_count(a, table->limiter.samples));
        grid_add(&grid, format_count(a, table->limiter.deletes));
        grid_add(&grid, table->info ? format_clean(clean, sizeof clean, table->info->sampler) : "-");
        grid_add(&grid, table->info ? format_clean(clean, sizeof clean, table->info->remover) : "-");
    }
    grid_print(&grid, stdout);
    grid_fini(&grid);
}

static void show_rest(const struct image *image)
{
    format_buffer a;
    char clean[260];
    printf("\nsessions %u, answered requests %u, samples that may be asked for again %u\n", image->n_sessions,
           image->n_replies, image->n_selections);
    for (uint32_t i = 0; i < image->n_slots; i++)
        printf("slot %s: version %llu, %s\n", format_clean(clean, sizeof clean, image->slots[i].name),
               (unsigned long long)image->slots[i].version, format_bytes(a, image->slots[i].bytes));
    for (uint32_t i = 0; i < image->n_counters; i++)
        printf("counter %s: %lld\n", format_clean(clean, sizeof clean, image->counters[i].name),
               (long long)image->counters[i].value);
}

static void table_json(struct json *json, const struct image_table *table)
{
    json_open(json, '{');
    json_key(json, "name");
    json_string(json, table->name);
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"size", table->size},
                   {"inserts", table->limiter.inserts},
                   {"samples", table->limiter.samples},
                   {"deletes", table->limiter.deletes},
                   {"total_inserts", table->total_inserts},
                   {"total_samples", table->total_samples}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        json_key(json, numbers[i].key);
        json_unsigned(json, numbers[i].value);
    }
    json_close(json, '}');
}

static int show_json(const struct image *image)
{
    struct json json = {0};
    json_open(&json, '{');
    json_key(&json, "checkpoint");
    json_unsigned(&json, image->checkpoint);
    json_key(&json, "journal_entries");
    json_unsigned(&json, image->journal_entries);
    json_key(&json, "sessions");
    json_unsigned(&json, image->n_sessions);
    json_key(&json, "tables");
    json_open(&json, '[');
    for (uint32_t i = 0; i < image->n_tables; i++)
        table_json(&json, &image->tables[i]);
    json_close(&json, ']');
    json_key(&json, "slots");
    json_open(&json, '{');
    for (uint32_t i = 0; i < image->n_slots; i++) {
        json_key(&json, image->slots[i].name);
        json_unsigned(&json, image->slots[i].version);
    }
    json_close(&json, '}');
    json_key(&json, "counters");
    json_open(&json, '{');
    for (uint32_t i = 0; i < image->n_counters; i++) {
        json_key(&json, image->counters[i].name);
        json_signed(&json, image->counters[i].value);
    }
    json_close(&json, '}');
    json_close(&json, '}');
    return ctl_print_text(&json);
}

int ctl_show_image(struct ctl *ctl, const struct image *image, const struct folder *folder)
{
    (void)folder;
    if (ctl->json)
        return show_json(image);
    char made[32];
    format_buffer entries;
    ctl_when(made, sizeof made, image->wall_ns);
    if (image->checkpoint)
        printf("checkpoint %llu, ", (unsigned long long)image->checkpoint);
    printf("%s journal entries after it; last file begun %s\n\n", format_count(entries, image->journal_entries), made);
    show_tables(image);
    show_rest(image);
    return CTL_OK;
}
