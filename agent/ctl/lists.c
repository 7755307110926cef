/* The commands that list: items, sessions. */
#include <stdio.h>

#include "agent/ctl/ctl.h"
#include "proto/base/format.h"

#define ITEMS_PAGE 1000u

/* ---- items ---- */

static void add_items(struct grid *grid, const Replay__ListReply *list, bool shards)
{
    format_buffer b;
    for (size_t i = 0; i < list->n_items; i++) {
        const Replay__ItemInfo *item = list->items[i];
        if (shards)
            grid_addf(grid, "%u", item->shard);
        grid_addf(grid, "%llu", (unsigned long long)item->key);
        grid_addf(grid, "%.6g", item->priority);
        grid_addf(grid, "%u", item->times_sampled);
        grid_add(grid, format_time(b, item->age_ns));
        grid_addf(grid, "%u", item->session);
        grid_addf(grid, "%u", item->episode);
        grid_addf(grid, "%llu", (unsigned long long)item->step);
        grid_addf(grid, "%u", item->length);
        grid_addf(grid, "%llu", (unsigned long long)item->policy);
        grid_add(grid, format_bytes(b, item->bytes));
    }
}

static void json_items(struct json *json, const Replay__ListReply *list)
{
    for (size_t i = 0; i < list->n_items; i++)
        json_message(json, &list->items[i]->base);
}

/* A list on its way to the screen. */
struct list {
    struct grid grid;
    struct json json;
    uint64_t shown, limit, cursor;
};

/* Adds the next page. Returns an exit code. */
static int add_page(struct ctl *ctl, struct list *self)
{
    rp_info *reply = NULL;
    rp_error err = {0};
    uint32_t size = self->limit - self->shown < ITEMS_PAGE ? (uint32_t)(self->limit - self->shown) : ITEMS_PAGE;
    if (rp_admin_list(ctl->client, ctl->argv[0], self->cursor, size, ctl->timeout_ms, &reply, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    const Replay__ListReply *list = ADMIN_AS(ListReply, reply);
    self->cursor = list->cursor;
    self->shown += list->n_items;
    ctl_warn_missing(list->shards, "items are");
    if (ctl->json)
        json_items(&self->json, list);
    else
        add_items(&self->grid, list, ctl->shards);
    rp_info_free(&reply);
    return CTL_OK;
}

static int print_list(const struct ctl *ctl, struct list *self)
{
    json_close(&self->json, ']');
    json_key(&self->json, "more");
    json_boolean(&self->json, self->cursor != 0);
    json_close(&self->json, '}');
    if (ctl->json)
        return ctl_print_text(&self->json);
    if (self->shown == 0)
        printf("the table is empty\n");
    else
        grid_print(&self->grid, stdout);
    if (self->cursor)
        printf("... and more: --limit N shows N of them, --limit 0 all\n");
    return CTL_OK;
}

int ctl_items(struct ctl *ctl)
{
    static const char *const titles[] = {">shard",   ">key",  ">priority", ">sampled", ">age",   ">session",
                                         ">episode", ">step", ">steps",    ">policy",  ">stored"};
    struct list list = {.limit = ctl->limit ? ctl->limit : UINT64_MAX};
    int rc;
    grid_init(&list.grid, titles + !ctl->shards, 10 + ctl->shards);
    json_open(&list.json, '{');
    json_key(&list.json, "items");
    json_open(&list.json, '[');
    do
        rc = add_page(ctl, &list);
    while (rc == CTL_OK && list.cursor && list.shown < list.limit);
    if (rc == CTL_OK)
        rc = print_list(ctl, &list);
    json_fini(&list.json);
    grid_fini(&list.grid);
    return rc;
}

/* ---- sessions ---- */

static int sessions_json(const Replay__InfoReply *info)
{
    struct json json = {0};
    json_open(&json, '{');
    json_key(&json, "sessions");
    json_open(&json, '[');
    for (size_t i = 0; i < info->n_sessions; i++)
        json_message(&json, &info->sessions[i]->base);
    json_close(&json, ']');
    json_close(&json, '}');
    return ctl_print_text(&json);
}

static void sessions_print(const Replay__InfoReply *info, bool shards)
{
    static const char *const titles[] = {">shard",   "name",     ">number",      ">messages", ">inserted",
                                         ">waiting", ">refused", ">chunks held", ">silent",   "state"};
    struct grid grid;
    format_buffer b;
    grid_init(&grid, titles + !shards, 9 + shards);
    for (size_t i = 0; i < info->n_sessions; i++) {
        const Replay__SessionInfo *session = info->sessions[i];
        uint64_t resolved = 0, waiting = 0;
        for (size_t t = 0; t < session->n_tables; t++) {
            resolved += session->tables[t]->resolved;
            waiting += session->tables[t]->waiting;
        }
        if (shards)
            grid_addf(&grid, "%u", session->shard);
        grid_add(&grid, session->name[0] ? session->name : "-");
        grid_addf(&grid, "%u", session->ordinal);
        grid_add(&grid, format_count(b, session->received));
        grid_add(&grid, format_count(b, resolved - (session->rejected < resolved ? session->rejected : resolved)));
        grid_add(&grid, format_count(b, waiting));
        grid_add(&grid, format_count(b, session->rejected));
        grid_add(&grid, format_bytes(b, session->chunk_bytes));
        grid_add(&grid, format_time(b, session->silent_ns));
        grid_add(&grid, session->expired ? "expired" : "open");
    }
    grid_print(&grid, stdout);
    grid_fini(&grid);
}

int ctl_sessions(struct ctl *ctl)
{
    rp_info *reply = NULL;
    rp_error err = {0};
    if (rp_admin_info(ctl->client, NULL, 1, ctl->timeout_ms, &reply, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    const Replay__InfoReply *info = ADMIN_AS(InfoReply, reply);
    int rc = CTL_OK;
    ctl_warn_missing(info->shards, "sessions are");
    if (ctl->json)
        rc = sessions_json(info);
    else if (info->n_sessions == 0)
        printf("no sessions\n");
    else
        sessions_print(info, ctl->shards);
    rp_info_free(&reply);
    return rc;
}
