/* The commands that tell about the whole broker: info, why, counters. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl/ctl.h"
#include "agent/ctl/top.h"
#include "proto/base/error.h"
#include "proto/base/format.h"

static void line(const char *name, const char *format, ...) RP_PRINTF(2, 3);

static void line(const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *value = NULL;
    if (vasprintf(&value, format, args) >= 0) {
        char clean[512];
        printf("  %-15s %s\n", name, format_clean(clean, sizeof clean, value));
        free(value);
    }
    va_end(args);
}

/* ---- info ---- */

static void print_server(const Replay__InfoReply *info)
{
    const Replay__ServerInfo *server = info->server;
    format_buffer a, b, c, d;
    char clean[128], totals[48];
    printf("broker %s", format_clean(clean, sizeof clean, server->release));
    if (info->shards)
        printf(", %s%s", top_totals(info->shards, totals, sizeof totals),
               top_missing(info->shards) ? " answer: the totals leave out the others" : "");
    printf("\n");
    line("service", "%s", server->service);
    line("ingest", "%s", server->ingest);
    line("events", "%s", server->events);
    line("up", "%s", format_time(a, server->uptime_ns));
    if (server->memory_limit)
        line("memory", "%s of %s (%s)", format_bytes(a, server->memory_bytes), format_bytes(b, server->memory_limit),
             format_percent(c, (double)server->memory_bytes, (double)server->memory_limit));
    else
        line("memory", "%s, no limit", format_bytes(a, server->memory_bytes));
    line("chunks", "%s, %s stored, %s raw", format_count(a, server->chunk_count), format_bytes(b, server->chunk_bytes),
         format_bytes(c, server->raw_bytes));
    line("granted", "%s of inserts may be in flight", format_bytes(a, server->granted_bytes));
    line("sessions", "%s", format_count(a, server->session_count));
    line("waiting", "%s", format_count(a, server->waiter_count));
    line("messages", "%s in, %s bad, %s replies dropped", format_count(a, server->messages_in),
         format_count(b, server->messages_bad), format_count(c, server->replies_dropped));
    line("longest work", "%s without reading the sockets", format_time(d, server->longest_stretch_ns));
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
    if (top_missing(info->shards))
        printf("in %s:\n", top_totals(info->shards, totals, sizeof totals));
    grid_print(&grid, stdout);
    grid_fini(&grid);
}

static void print_limiter(const Replay__LimiterInfo *limiter)
{
    format_buffer a, b;
    if (ctl_has_ratio(limiter)) {
        line("limiter", "%s: min_size %s, samples_per_insert %.10g", limiter->kind, format_bound(a, limiter->min_size),
             limiter->samples_per_insert);
        line("cursor", "%.10g between %s and %s", limiter->cursor, format_bound(a, limiter->min_diff),
             format_bound(b, limiter->max_diff));
    } else {
        line("limiter", "%s: min_size %s, no ratio of samples to inserts", limiter->kind,
             format_bound(a, limiter->min_size));
    }
    line("so far", "%llu inserts, %llu samples, %llu deletes", (unsigned long long)limiter->inserts,
         (unsigned long long)limiter->samples, (unsigned long long)limiter->deletes);
    line("inserts", "%s", limiter->inserts_wait[0] ? limiter->inserts_wait : "may go on");
    line("samples", "%s", limiter->samples_wait[0] ? limiter->samples_wait : "may go on");
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
    format_buffer a, b, c;
    char clean[256], totals[48];
    printf("table %s", format_clean(clean, sizeof clean, table->name));
    if (top_missing(shards))
        printf(" in %s", top_totals(shards, totals, sizeof totals));
    printf("\n");
    line("selectors", "sampler %s, remover %s", table->sampler, table->remover);
    line("items", "%s of %s", format_count(a, table->size), table->max_size ? format_count(b, table->max_size) : "any");
    line("bytes", "%s of %s", format_bytes(a, table->bytes),
         table->max_bytes ? format_bytes(b, table->max_bytes) : "any");
    if (table->max_times_sampled)
        line("goes after", "%u samples", table->max_times_sampled);
    if (table->limiter)
        print_limiter(table->limiter);
    line("rates", "insert %s, sample %s, update %s", format_rate(a, table->insert_rate),
         format_rate(b, table->sample_rate), format_rate(c, table->update_rate));
    line("waiting", "%llu inserts, %llu samplers", (unsigned long long)table->waiting_inserts,
         (unsigned long long)table->waiting_samplers);
    line("updates", "%s, %s of them for items no longer in the table", format_count(a, table->updates),
         format_count(b, table->updates_missing));
    line("removed", "%s evicted, %s rejected, %s picked for samplers that have disconnected",
         format_count(a, table->evicted), format_count(b, table->rejected), format_count(c, table->orphaned_picks));
    if (table->evicted_for_memory)
        line("for memory", "%s of the evicted: memory_limit is reached before max_size",
             format_count(a, table->evicted_for_memory));
    line("distinct", "%s items sampled at least once", format_count(a, table->unique_samples));
    line("episodes", "%s inserted, %s of them with no item in the table any more", format_count(a, table->episodes),
         format_count(b, table->deleted_episodes));
    line("samples are", "%s old, %.1f versions behind, on average", format_seconds(a, table->mean_age_s),
         table->mean_staleness);
    print_signature(table);
    if (table->metadata[0])
        line("metadata", "%s", format_clean(clean, sizeof clean, table->metadata));
    line("priorities", "sum to %.6g", table->total_priority);
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
    grid_fini(&grid);
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
    grid_fini(&grid);
}

int ctl_info(struct ctl *ctl)
{
    rp_info *reply = NULL;
    rp_error err = {0};
    int rc = CTL_OK;
    const char *table = ctl->argc ? ctl->argv[0] : NULL;
    if (rp_admin_info(ctl->client, table, 0, ctl->timeout_ms, &reply, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    const Replay__InfoReply *info = ADMIN_AS(InfoReply, reply);
    if (ctl->json) {
        rc = ctl_print_json(reply);
    } else if (table) {
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
    if (!ctl->json && ctl->shards)
        ctl_print_shards(info->shards, !table);
    if (!ctl->json) {
        ctl_print_missing(info->shards);
        ctl_print_differences(info->shards);
    }
    rp_info_free(&reply);
    return rc;
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
    Replay__Wait **waits = malloc(why->n_waits * sizeof(*waits));
    grid_init(&grid, titles + !shards, 6 + shards);
    if (waits) {
        memcpy(waits, why->waits, why->n_waits * sizeof(*waits));
        qsort(waits, why->n_waits, sizeof(*waits), compare_waits);
    }
    for (size_t i = 0, n; waits && i < why->n_waits; i += n) {
        for (n = 1; i + n < why->n_waits && compare_waits(&waits[i], &waits[i + n]) == 0;)
            n++;
        add_waits(&grid, waits + i, n, shards);
    }
    free(waits);
    grid_print(&grid, stdout);
    grid_fini(&grid);
}

void ctl_explain(const struct ctl *ctl, const rp_info *info, const rp_info *waits, struct why *out)
{
    char *text = ctl_read_status(ctl);
    if (!text || !why_read_status(text, out))
        why_explain(&(struct why_facts){.info = info, .waits = waits}, out);
    free(text);
}

int ctl_why(struct ctl *ctl)
{
    rp_info *waits = NULL, *info = NULL;
    rp_error err = {0};
    struct why why;
    int rc = CTL_OK;
    if (rp_admin_why(ctl->client, ctl->timeout_ms, &waits, &err) != RP_OK ||
        (!ctl->json && rp_admin_info(ctl->client, NULL, 0, ctl->timeout_ms, &info, &err) != RP_OK)) {
        rc = ctl_fail(ctl, &err);
    } else if (ctl->json) {
        rc = ctl_print_json(waits);
    } else {
        const Replay__WhyReply *reply = ADMIN_AS(WhyReply, waits);
        if (reply->n_waits > 0)
            print_waits(reply, ctl->shards);
        else
            puts("nothing waits");
        ctl_print_differences(ADMIN_AS(InfoReply, info)->shards);
        ctl_explain(ctl, info, waits, &why); /* the sentence that the launcher's view and the page show, too */
        printf("%s%s%s\n", why.text, why.advice[0] ? " " : "", why.advice);
    }
    rp_info_free(&info);
    rp_info_free(&waits);
    return rc;
}

/* ---- counters ---- */

int ctl_counters(struct ctl *ctl)
{
    rp_info *reply = NULL;
    rp_error err = {0};
    if (rp_admin_info(ctl->client, NULL, 0, ctl->timeout_ms, &reply, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    int rc = CTL_OK;
    const Replay__InfoReply *info = ADMIN_AS(InfoReply, reply);
    if (info->shards && info->shards->shard[0]->problem[0]) {
        err_set(&err, RP_UNAVAILABLE, "%s, and it has the counters", info->shards->shard[0]->problem);
        rc = ctl_fail(ctl, &err);
    } else if (ctl->json) {
        struct json json = {0};
        json_open(&json, '{');
        for (size_t i = 0; i < info->n_counters; i++) {
            json_key(&json, info->counters[i]->name);
            json_signed(&json, info->counters[i]->value);
        }
        json_close(&json, '}');
        rc = ctl_print_text(&json);
    } else if (info->n_counters == 0) {
        printf("no counters\n");
    } else {
        print_counters(info->counters, info->n_counters);
    }
    rp_info_free(&reply);
    return rc;
}
