/* The commands that show what a broker has: info, why, items, sessions, params. Numbers are printed by the rows of
 * proto/wire/figures.c. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl/ctl.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/wire/figures.h"
#include "replay/params.h"

#define ITEMS_PAGE 1000u

static void line(const char *name, const char *format, ...) RP_PRINTF(2, 3);

static void line(const char *name, const char *format, ...)
{
    char value[1024], clean[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args); /* NOLINT: clang 14 does not see va_start on x86-64 */
    va_end(args);
    printf("  %-20s %s\n", name, format_clean(clean, sizeof clean, value));
}

/* ---- numbers ---- */

/* Writes a number in the unit that its name tells. */
static const char *format_figure(char *out, const struct figure *row, const ProtobufCMessage *message)
{
    double value = figure_value(row, message);
    if (strcmp(row->name, "instance") == 0) { /* a random number: all its digits count */
        snprintf(out, FORMAT_SIZE, "%llu", (unsigned long long)((const Replay__ServerInfo *)message)->instance);
        return out;
    }
    if (row->fold == FOLD_BOUND || !isfinite(value))
        return format_bound(out, value);
    if (text_ends(row->name, "_ns") || text_ends(row->name, "_s"))
        return format_seconds(out, value);
    if (strstr(row->name, "bytes") || text_ends(row->name, "_limit") || text_ends(row->name, "_budget"))
        return format_bytes(out, (uint64_t)value);
    if (text_ends(row->name, "_rate"))
        return format_rate(out, value);
    if (value >= 0 && value == floor(value) && value < 1e18)
        return format_count(out, (uint64_t)value);
    snprintf(out, FORMAT_SIZE, "%.6g", value);
    return out;
}

static void print_figure(const struct figure *row, const ProtobufCMessage *message)
{
    format_buffer value;
    format_figure(value, row, message);
    if (row->help)
        line(row->name, "%-14s %s", value, row->help);
    else
        line(row->name, "%s", value);
}

/* Prints all numbers of a message but its histograms, each with what it counts. */
static void print_figures(const struct figures *figures, const ProtobufCMessage *message)
{
    for (const struct figure *row = figures->rows; row->name; row++)
        if (row->type == FIGURE_HISTOGRAM)
            row++; /* its sum */
        else
            print_figure(row, message);
}

/* ---- info ---- */

static void print_server(const Replay__InfoReply *info)
{
    const Replay__ServerInfo *server = info->server;
    char clean[128], totals[48];
    printf("broker %s", format_clean(clean, sizeof clean, server->release));
    if (info->shards)
        printf(", %s%s", ctl_totals(info->shards, totals, sizeof totals),
               ctl_missing(info->shards) ? " answer: the totals leave out the others" : "");
    printf("\n");
    line("service", "%s", server->service);
    line("ingest", "%s", server->ingest);
    line("events", "%s", server->events);
    print_figures(&server_figures, &server->base);
}

static void print_tables(const Replay__InfoReply *info)
{
    static const char *const titles[] = {"table",   "sampler", "remover", ">items",   ">of",      ">bytes",
                                         ">insert", ">sample", ">update", ">waiting", ">mean age"};
    struct grid grid;
    format_buffer b;
    grid_init(&grid, titles, 11);
    for (size_t i = 0; i < info->n_tables; i++) {
        const Replay__TableInfo *table = info->tables[i];
        grid_add(&grid, table->name);
        grid_add(&grid, table->sampler);
        grid_add(&grid, table->remover);
        grid_add(&grid, format_count(b, table->size));
        grid_add(&grid, table->max_size ? format_count(b, table->max_size) : "-");
        grid_add(&grid, format_bytes(b, table->bytes));
        grid_add(&grid, format_rate(b, table->insert_rate));
        grid_add(&grid, format_rate(b, table->sample_rate));
        grid_add(&grid, format_rate(b, table->update_rate));
        grid_addf(&grid, "%llu+%llu", (unsigned long long)table->waiting_inserts,
                  (unsigned long long)table->waiting_samplers);
        grid_add(&grid, format_seconds(b, table->mean_age_s));
    }
    char totals[48];
    printf("\n");
    if (ctl_missing(info->shards))
        printf("in %s:\n", ctl_totals(info->shards, totals, sizeof totals));
    grid_print(&grid, stdout);
}

/* Without a ratio, the cursor and its bounds mean nothing. */
void ctl_print_limiter(const Replay__LimiterInfo *limiter)
{
    bool ratio = ctl_has_ratio(limiter);
    line("limiter", "%s%s", limiter->kind, ratio ? "" : ": no ratio of samples to inserts");
    for (const struct figure *row = limiter_figures.rows; row->name; row++)
        if (ratio || row->type != FIGURE_GAUGE || strcmp(row->name, "min_size") == 0)
            print_figure(row, &limiter->base);
    line("an insert", "%s", limiter->inserts_wait[0] ? limiter->inserts_wait : "may go on");
    line("a sample", "%s", limiter->samples_wait[0] ? limiter->samples_wait : "may go on");
}

/* One line for each field: "float32 [any 4]". */
static void print_signature(const Replay__TableInfo *table)
{
    for (size_t i = 0; i < table->n_signature; i++) {
        const Replay__Column *field = table->signature[i];
        char clean[256], shape[128] = "";
        int used = 0;
        for (size_t d = 0; d < field->n_shape && used >= 0 && (size_t)used < sizeof shape; d++)
            used += snprintf(shape + used, sizeof shape - (size_t)used, d == 0 && !field->shape[d] ? "%sany" : "%s%u",
                             d ? " " : "", field->shape[d]);
        line(i                   ? ""
             : table->prescribed ? "signature"
                                 : "newest item",
             "%s: %s [%s]", format_clean(clean, sizeof clean, field->name), field->dtype, shape);
    }
}

static void print_table(const Replay__TableInfo *table, const Replay__Shards *shards)
{
    char clean[256], totals[48];
    printf("table %s", format_clean(clean, sizeof clean, table->name));
    if (ctl_missing(shards))
        printf(" in %s", ctl_totals(shards, totals, sizeof totals));
    printf("\n");
    line("selectors", "sampler %s, remover %s", table->sampler, table->remover);
    print_figures(&table_figures, &table->base);
    if (table->limiter)
        ctl_print_limiter(table->limiter);
    print_signature(table);
    if (table->metadata[0])
        line("metadata", "%s", table->metadata);
    for (size_t i = 0; i < table->n_stats; i++)
        line(i ? "" : "statistics", "%s = %.6g", table->stats[i]->name, table->stats[i]->value);
}

static void print_slots(Replay__SlotInfo *const *slots, size_t n)
{
    static const char *const titles[] = {"slot", ">version", ">size", ">age"};
    struct grid grid;
    format_buffer b;
    grid_init(&grid, titles, 4);
    for (size_t i = 0; i < n; i++) {
        grid_add(&grid, slots[i]->name);
        grid_addf(&grid, "%llu", (unsigned long long)slots[i]->version);
        grid_add(&grid, format_bytes(b, slots[i]->bytes));
        grid_add(&grid, format_time(b, slots[i]->age_ns));
    }
    grid_print(&grid, stdout);
}

static void print_counters(Replay__CounterInfo *const *counters, size_t n)
{
    static const char *const titles[] = {"counter", ">value"};
    struct grid grid;
    grid_init(&grid, titles, 2);
    for (size_t i = 0; i < n; i++) {
        grid_add(&grid, counters[i]->name);
        grid_addf(&grid, "%lld", (long long)counters[i]->value);
    }
    grid_print(&grid, stdout);
}

/* ---- shards by themselves ---- */

static void add_server(struct grid *grid, const Replay__ServerInfo *server)
{
    format_buffer b;
    if (!server) {
        for (uint32_t i = 0; i < 5; i++)
            grid_add(grid, "-");
        return;
    }
    grid_add(grid, format_time(b, server->uptime_ns));
    grid_add(grid, format_bytes(b, server->memory_bytes));
    grid_add(grid, format_count(b, server->session_count));
    grid_add(grid, format_count(b, server->waiter_count));
    grid_add(grid, format_count(b, server->messages_in));
}

static void print_servers(const Replay__Shards *shards)
{
    static const char *const titles[] = {">shard",  "service",   "state",    ">up",
                                         ">memory", ">sessions", ">waiting", ">messages"};
    struct grid grid;
    grid_init(&grid, titles, 8);
    for (size_t i = 0; i < shards->n_shard; i++) {
        const Replay__ShardInfo *row = shards->shard[i];
        grid_addf(&grid, "%u", row->shard);
        grid_add(&grid, row->service);
        grid_add(&grid, row->problem[0] ? "does not answer" : "answers");
        add_server(&grid, row->server);
    }
    grid_print(&grid, stdout);
}

static void add_part(struct grid *grid, const Replay__ShardInfo *row, const Replay__TableInfo *table)
{
    const Replay__LimiterInfo *limiter = table->limiter;
    format_buffer a, b;
    grid_add(grid, table->name);
    grid_addf(grid, "%u", row->shard);
    grid_add(grid, format_count(a, table->size));
    grid_add(grid, table->max_size ? format_count(a, table->max_size) : "-");
    grid_add(grid, format_bytes(a, table->bytes));
    grid_add(grid, format_rate(a, table->insert_rate));
    grid_add(grid, format_rate(a, table->sample_rate));
    grid_addf(grid, "%llu+%llu", (unsigned long long)table->waiting_inserts,
              (unsigned long long)table->waiting_samplers);
    grid_add(grid, limiter ? format_bound(a, limiter->min_size) : "-");
    if (!ctl_has_ratio(limiter)) {
        for (uint32_t i = 0; i < 3; i++)
            grid_add(grid, "-");
        return;
    }
    grid_addf(grid, "%.6g", limiter->samples_per_insert);
    grid_addf(grid, "%.6g", limiter->cursor);
    grid_addf(grid, "%s to %s", format_bound(a, limiter->min_diff), format_bound(b, limiter->max_diff));
}

static void print_parts(const Replay__Shards *shards)
{
    static const char *const titles[] = {"table",   ">shard",   ">items",    ">of",    ">bytes",  ">insert",
                                         ">sample", ">waiting", ">min_size", ">ratio", ">cursor", "between"};
    struct grid grid;
    size_t most = 0;
    grid_init(&grid, titles, 12);
    for (size_t i = 0; i < shards->n_shard; i++)
        most = shards->shard[i]->n_tables > most ? shards->shard[i]->n_tables : most;
    for (size_t t = 0; t < most; t++)
        for (size_t i = 0; i < shards->n_shard; i++)
            if (t < shards->shard[i]->n_tables)
                add_part(&grid, shards->shard[i], shards->shard[i]->tables[t]);
    grid_print(&grid, stdout);
}

void ctl_print_shards(const Replay__Shards *shards, bool servers)
{
    printf("\n");
    if (!shards) {
        printf("the broker is alone: it has no shards\n");
        return;
    }
    if (servers) {
        print_servers(shards);
        printf("\n");
    }
    print_parts(shards);
}

/* Returns what the broker says about itself, or about a table; NULL: ctl->err says why not. */
static const Replay__InfoReply *ask_info(struct ctl *ctl, const char *table, bool sessions)
{
    rp_status status = rp_admin_info(ctl->client, table, sessions, ctl->timeout_ms, &ctl->reply, &ctl->err);
    return status == RP_OK ? ADMIN_AS(InfoReply, ctl->reply) : NULL;
}

int ctl_info(struct ctl *ctl)
{
    const char *table = ctl->argc ? ctl->argv[0] : NULL;
    const Replay__InfoReply *info = ask_info(ctl, table, false);
    if (!info)
        return ctl_fail(ctl);
    if (ctl->json)
        return ctl_print_json(ctl->reply);
    if (table) {
        for (size_t i = 0; i < info->n_tables; i++)
            print_table(info->tables[i], info->shards);
    } else {
        print_server(info);
        print_tables(info);
        if (info->n_slots) {
            printf("\n");
            print_slots(info->slots, info->n_slots);
        }
        if (info->n_counters) {
            printf("\n");
            print_counters(info->counters, info->n_counters);
        }
    }
    if (ctl->shards)
        ctl_print_shards(info->shards, !table);
    ctl_print_missing(info->shards, "part is", stdout);
    ctl_print_differences(info->shards);
    return CTL_OK;
}

/* ---- why ---- */

/* Returns the text of a wait without the number of the shard, for which there is a column. */
static const char *text_of(const Replay__Wait *wait, bool shards)
{
    char prefix[32];
    int size = snprintf(prefix, sizeof prefix, "shard %u: ", wait->shard);
    return shards && strncmp(wait->text, prefix, (size_t)size) == 0 ? wait->text + size : wait->text;
}

/* Orders waits so that those that differ only in who waits, how much and how long are neighbours. */
static int compare_waits(const void *a, const void *b)
{
    const Replay__Wait *one = *(Replay__Wait *const *)a, *other = *(Replay__Wait *const *)b;
    int order = strcmp(one->kind, other->kind);
    order = order ? order : strcmp(one->table, other->table);
    order = order ? order : strcmp(one->text, other->text);
    order = order ? order : (int)one->has_shard_case - (int)other->has_shard_case;
    return order ? order : (one->shard > other->shard) - (one->shard < other->shard);
}

/* Adds a line for n waits that are alike: the first with a name, the sum of their items, and the longest time. */
static void add_waits(struct grid *grid, Replay__Wait *const *waits, size_t n, bool shards)
{
    const Replay__Wait *wait = waits[0];
    uint64_t got = 0, count = 0, waited_ns = 0;
    format_buffer b;
    for (size_t i = 0; i < n; i++) {
        got += waits[i]->got;
        count += waits[i]->count;
        waited_ns = waits[i]->waited_ns > waited_ns ? waits[i]->waited_ns : waited_ns;
    }
    if (shards && wait->has_shard_case == REPLAY__WAIT__HAS_SHARD_ALL_SHARDS)
        grid_add(grid, "all");
    else if (shards)
        grid_addf(grid, "%u", wait->shard);
    if (n > 1)
        grid_addf(grid, "%s and %zu more", wait->who, n - 1);
    else
        grid_add(grid, wait->who);
    grid_add(grid, wait->kind);
    grid_add(grid, wait->table[0] ? wait->table : "-");
    if (got)
        grid_addf(grid, "%llu of %llu", (unsigned long long)got, (unsigned long long)count);
    else
        grid_addf(grid, "%llu", (unsigned long long)count);
    grid_add(grid, format_time(b, waited_ns));
    grid_add(grid, text_of(wait, shards));
}

static void print_waits(const Replay__WhyReply *why, bool shards)
{
    static const char *const titles[] = {">shard", "who", "kind", "where", ">items", ">for", "what is missing"};
    struct grid grid;
    grid_init(&grid, titles + !shards, 6 + shards);
    qsort(why->waits, why->n_waits, sizeof(*why->waits), compare_waits);
    for (size_t i = 0, n; i < why->n_waits; i += n) {
        for (n = 1; i + n < why->n_waits && compare_waits(&why->waits[i], &why->waits[i + n]) == 0;)
            n++;
        add_waits(&grid, why->waits + i, n, shards);
    }
    grid_print(&grid, stdout);
}

int ctl_why(struct ctl *ctl)
{
    rp_info *waits = NULL;
    struct why why;
    int rc = CTL_OK;
    if (rp_admin_why(ctl->client, ctl->timeout_ms, &waits, &ctl->err) != RP_OK ||
        (!ctl->json && !ask_info(ctl, NULL, false))) {
        rc = ctl_fail(ctl);
    } else if (ctl->json) {
        rc = ctl_print_json(waits);
    } else {
        const Replay__WhyReply *reply = ADMIN_AS(WhyReply, waits);
        if (reply->n_waits > 0)
            print_waits(reply, ctl->shards);
        else
            puts("nothing waits");
        ctl_print_differences(ADMIN_AS(InfoReply, ctl->reply)->shards);
        ctl_explain(ctl, ctl->reply, waits, &why); /* the sentence that the launcher's view and the page show, too */
        printf("%s%s%s\n", why.text, why.advice[0] ? " " : "", why.advice);
    }
    rp_info_free(&waits);
    return rc;
}

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

/* A list on its way to the screen. */
struct ctl_list {
    struct grid grid;
    struct json json;
    uint64_t shown, limit, cursor;
};

/* Adds the next page. Returns an exit code. */
static int add_page(struct ctl *ctl, struct ctl_list *self)
{
    uint32_t size = self->limit - self->shown < ITEMS_PAGE ? (uint32_t)(self->limit - self->shown) : ITEMS_PAGE;
    rp_info_free(&ctl->reply);
    if (rp_admin_list(ctl->client, ctl->argv[0], self->cursor, size, ctl->timeout_ms, &ctl->reply, &ctl->err) != RP_OK)
        return ctl_fail(ctl);
    const Replay__ListReply *list = ADMIN_AS(ListReply, ctl->reply);
    self->cursor = list->cursor;
    self->shown += list->n_items;
    ctl_print_missing(list->shards, "items are", stderr);
    if (ctl->json)
        for (size_t i = 0; i < list->n_items; i++)
            json_message(&self->json, &list->items[i]->base);
    else
        add_items(&self->grid, list, ctl->shards);
    return CTL_OK;
}

static int print_list(const struct ctl *ctl, struct ctl_list *self)
{
    json_close(&self->json, ']');
    json_flag(&self->json, "more", self->cursor != 0);
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
    struct ctl_list list = {.limit = ctl->limit ? ctl->limit : UINT64_MAX};
    int rc;
    grid_init(&list.grid, titles + !ctl->shards, 10 + ctl->shards);
    json_open(&list.json, '{');
    json_begin(&list.json, "items", '[');
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
}

int ctl_sessions(struct ctl *ctl)
{
    const Replay__InfoReply *info = ask_info(ctl, NULL, true);
    if (!info)
        return ctl_fail(ctl);
    ctl_print_missing(info->shards, "sessions are", stderr);
    if (ctl->json) {
        struct json json = {0};
        json_open(&json, '{');
        json_list(&json, "sessions", (ProtobufCMessage *const *)info->sessions, info->n_sessions);
        json_close(&json, '}');
        return ctl_print_text(&json);
    }
    if (info->n_sessions == 0)
        printf("no sessions\n");
    else
        sessions_print(info, ctl->shards);
    return CTL_OK;
}

/* ---- params ---- */

int ctl_params(struct ctl *ctl)
{
    rp_params *params = NULL;
    format_buffer size;
    if (!ctl->save)
        return ctl_usage("params needs --save FILE; 'replay-ctl info' lists the slots");
    const Replay__InfoReply *info = ask_info(ctl, NULL, false);
    size_t i = 0;
    while (info && i < info->n_slots && strcmp(info->slots[i]->name, ctl->argv[0]) != 0)
        i++;
    if (info && i == info->n_slots)
        err_set(&ctl->err, RP_NOT_FOUND, "there is no slot '%s'", ctl->argv[0]);
    rp_status status = ctl->err.status
                           ? (rp_status)ctl->err.status
                           : rp_params_get(ctl->client, ctl->argv[0], 0, ctl->timeout_ms, &params, &ctl->err);
    const rp_param *slot = status == RP_OK ? rp_params_slot(params) : NULL;
    if (slot)
        status = ctl_write(ctl->save, slot->data, (size_t)slot->bytes, &ctl->err);
    if (slot && status == RP_OK && !ctl->json && strcmp(ctl->save, "-") != 0)
        printf("version %llu of %s, %s, is in %s\n", (unsigned long long)slot->version, slot->name,
               format_bytes(size, slot->bytes), ctl->save);
    rp_params_release(&params);
    return status == RP_OK ? CTL_OK : ctl_fail(ctl);
}
