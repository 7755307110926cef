/* The commands that fetch, change or record something: item, delete, reset, limiter, trace. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/config/schema.h"
#include "replay/sampler.h"

/* ---- item ---- */

static void print_values(const rp_field_view *field, uint32_t max_values)
{
    uint64_t elem = dtype_size(field->dtype), count = field->bytes / elem;
    struct json json = {0};
    json_open(&json, '[');
    for (uint64_t i = 0; i < count && i < max_values; i++)
        admin_json_element(&json, field->dtype, (const uint8_t *)field->data + i * elem);
    json_close(&json, ']');
    char *text = json_need(&json);
    if (count > max_values) {
        text[strlen(text) - 1] = '\0';
        printf("%s, ... %llu more]\n", text, (unsigned long long)(count - max_values));
    } else {
        printf("%s\n", text);
    }
    free(text);
}

static void print_item(const char *table, const rp_batch *batch, bool sharded, uint32_t max_values)
{
    rp_batch_arrays item = {.struct_size = sizeof item};
    rp_batch_get_arrays(batch, &item);
    format_buffer age;
    char clean[256];
    printf("item %llu in table %s\n", (unsigned long long)item.key[0], format_clean(clean, sizeof clean, table));
    printf("  %-15s %.17g\n", "priority", item.priority[0]);
    printf("  %-15s %u\n", "times sampled", item.times_sampled[0]);
    printf("  %-15s %s\n", "age", format_time(age, item.age_ns[0]));
    if (sharded)
        printf("  %-15s %u\n", "shard", wire_key_shard(item.key[0]));
    printf("  %-15s session %u, first step %llu, policy version %llu\n", "made by", item.session[0],
           (unsigned long long)item.step[0], (unsigned long long)item.policy[0]);
    const rp_field_view *field;
    for (uint32_t f = 0; (field = rp_batch_field(batch, f)) != NULL; f++) {
        printf("  %s: %s[", format_clean(clean, sizeof clean, field->name), dtype_name(field->dtype));
        for (uint32_t k = 1; k < field->rank; k++)
            printf("%s%llu", k > 1 ? "," : "", (unsigned long long)field->shape[k]);
        printf("] ");
        print_values(field, max_values);
    }
}

/* Fetches the item into a batch, if it is in the table. */
static rp_status fetch_from(struct ctl *ctl, const char *table, uint64_t key, rp_batch **out, rp_error *err)
{
    RP_TRY(rp_admin_fetch(ctl->client, table, &key, 1, ctl->timeout_ms, out, err));
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_get_info(*out, &info);
    if (info.n == 1)
        return RP_OK;
    rp_batch_release(out);
    return err_set(err, RP_NOT_FOUND, "table '%s' has no item %llu", table, (unsigned long long)key);
}

static rp_status fetch_anywhere(struct ctl *ctl, uint64_t key, const char **table, rp_batch **out, rp_error *err)
{
    for (uint32_t i = 0; (*table = rp_client_table(ctl->client, i)) != NULL; i++) {
        rp_status status = fetch_from(ctl, *table, key, out, err);
        if (status != RP_NOT_FOUND)
            return status;
    }
    return err_set(err, RP_NOT_FOUND, "no table has an item %llu", (unsigned long long)key);
}

/* Reads a key. Returns 0, or an exit code after a message. Leading zeros do not mean octal: that would be another item. */
static int read_key(const char *text, uint64_t *key)
{
    bool hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    char *end;
    errno = 0;
    *key = strtoull(text, &end, hexadecimal ? 16 : 10);
    if (*end || end == text || errno || text[0] < '0' || text[0] > '9')
        return ctl_usage("'%s' is not a key: write a decimal number, or a hexadecimal number with 0x", text);
    return 0;
}

int ctl_item(struct ctl *ctl)
{
    rp_batch *batch = NULL;
    uint64_t key;
    int wrong = read_key(ctl->argv[0], &key);
    if (wrong)
        return wrong;
    const char *table = ctl->table;
    rp_status status =
        table ? fetch_from(ctl, table, key, &batch, &ctl->err) : fetch_anywhere(ctl, key, &table, &batch, &ctl->err);
    if (status != RP_OK)
        return ctl_fail(ctl);
    int rc = CTL_OK;
    if (ctl->json) {
        struct json json = {0};
        json_open(&json, '{');
        json_text(&json, "table", table);
        json_key(&json, "item");
        admin_json_item(&json, batch, 0, ctl->given & CTL_VALUES ? ctl->values : 1000);
        json_close(&json, '}');
        rc = ctl_print_text(&json);
    } else {
        print_item(table, batch, client_shards(ctl->client) > 1, ctl->given & CTL_VALUES ? ctl->values : 12);
    }
    rp_batch_release(&batch);
    return rc;
}

/* ---- delete ---- */

int ctl_delete(struct ctl *ctl)
{
    uint64_t keys[CTL_MAX_KEYS];
    uint32_t n = ctl->argc - 1;
    for (uint32_t i = 0; i < n; i++) {
        int wrong = read_key(ctl->argv[i + 1], &keys[i]);
        if (wrong)
            return wrong;
    }
    rp_change change = {0};
    if (rp_items_delete(ctl->client, ctl->argv[0], keys, n, ctl->timeout_ms, &change, &ctl->err) != RP_OK)
        return ctl_fail(ctl);
    if (ctl->json)
        printf("{\"applied\": %llu, \"missing\": %llu}\n", (unsigned long long)change.applied,
               (unsigned long long)change.missing);
    else
        printf("%llu of %u items removed from %s%s\n", (unsigned long long)change.applied, n, ctl->argv[0],
               change.missing ? "; the others are not in it" : "");
    return change.missing ? CTL_REFUSED : CTL_OK;
}

/* ---- reset ---- */

/* Prints how many items each shard has removed; shards may be NULL. */
static void print_removed(const Replay__Shards *shards)
{
    for (size_t i = 0; shards && i < shards->n_shard; i++) {
        const Replay__ShardInfo *row = shards->shard[i];
        format_buffer count;
        if (row->change)
            printf("  shard %u: %s\n", row->shard, format_count(count, row->change->applied));
    }
}

int ctl_reset(struct ctl *ctl)
{
    if (rp_admin_reset(ctl->client, ctl->argv[0], ctl->timeout_ms, &ctl->reply, &ctl->err) != RP_OK)
        return ctl_fail(ctl);
    if (ctl->json)
        return ctl_print_json(ctl->reply);
    format_buffer count;
    printf("%s items removed from %s\n", format_count(count, rp_info_u64(ctl->reply, "applied")), ctl->argv[0]);
    if (ctl->shards)
        print_removed(ADMIN_AS(ChangeReply, ctl->reply)->shards);
    return CTL_OK;
}

/* ---- limiter ---- */

/* Returns 0, or an exit code after a message. */
static int read_setting(const char *text, rp_limiter_change *change)
{
    const struct {
        const char *name;
        double *value; /* NULL: it has none */
        rp_limiter_field field;
    } rows[] = {{"samples_per_insert", &change->samples_per_insert, RP_LIMITER_SAMPLES_PER_INSERT},
                {"min_size", &change->min_size, RP_LIMITER_MIN_SIZE},
                {"min_diff", &change->min_diff, RP_LIMITER_MIN_DIFF},
                {"max_diff", &change->max_diff, RP_LIMITER_MAX_DIFF},
                {"error_buffer", &change->error_buffer, RP_LIMITER_ERROR_BUFFER},
                {"max_lag", &change->max_lag, RP_LIMITER_MAX_LAG},
                {"pause", NULL, RP_LIMITER_PAUSE},
                {"go", NULL, RP_LIMITER_GO}};
    const char *names[sizeof rows / sizeof rows[0]], *sign = strchr(text, '=');
    size_t size = sign ? (size_t)(sign - text) : strlen(text);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(size < 60 ? size : 60), text);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        names[i] = rows[i].name;
        if (strcmp(rows[i].name, name) != 0)
            continue;
        if (rows[i].value && (!sign || !schema_parse_real(sign + 1, rows[i].value)))
            return ctl_usage("'%s' needs a number: %s=100", name, name);
        if (!rows[i].value && sign)
            return ctl_usage("'%s' takes no value", name);
        change->set |= rows[i].field;
        return 0;
    }
    const char *near = schema_nearest(name, names, sizeof rows / sizeof rows[0]);
    return near ? ctl_usage("a limiter has no '%s' (did you mean '%s'?)", name, near)
                : ctl_usage("a limiter has no '%s': samples_per_insert, min_size, min_diff, max_diff, error_buffer, "
                            "max_lag; pause and go",
                            name);
}

/* Prints what there is to say about single shards. A change has reached all of them: ask what they have now. */
static int limiter_shards(struct ctl *ctl, const char *table, const Replay__Shards *shards)
{
    rp_info *reply = NULL;
    if (!shards && ctl->shards && rp_admin_info(ctl->client, table, 0, ctl->timeout_ms, &reply, &ctl->err) != RP_OK)
        return ctl_fail(ctl);
    shards = reply ? ADMIN_AS(InfoReply, reply)->shards : shards;
    if (ctl->shards)
        ctl_print_shards(shards, false);
    ctl_print_missing(shards, "part is", stdout);
    ctl_print_differences(shards);
    rp_info_free(&reply);
    return CTL_OK;
}

int ctl_limiter(struct ctl *ctl)
{
    rp_limiter_change change = {.struct_size = sizeof change};
    for (uint32_t i = 1; i < ctl->argc; i++) {
        int rc = read_setting(ctl->argv[i], &change);
        if (rc)
            return rc;
    }
    const char *table = ctl->argv[0];
    rp_info **reply = &ctl->reply;
    rp_status status = change.set ? rp_admin_set_limiter(ctl->client, table, &change, ctl->timeout_ms, reply, &ctl->err)
                                  : rp_admin_info(ctl->client, table, 0, ctl->timeout_ms, reply, &ctl->err);
    const rp_info *limiter = change.set ? *reply : rp_info_at(*reply, "tables.0.limiter", 0);
    const Replay__Shards *shards = change.set || !*reply ? NULL : ADMIN_AS(InfoReply, *reply)->shards;
    if (status == RP_OK && !limiter)
        status = err_set(&ctl->err, RP_BAD_MESSAGE, "the broker's reply has no limiter of '%s'", table);
    if (status != RP_OK)
        return ctl_fail(ctl);
    if (ctl->json) {
        ctl_print_missing(shards, "part is", stderr);
        return ctl_print_json(limiter);
    }
    char totals[48];
    printf("limiter of %s%s%s\n", table, ctl_missing(shards) ? " in " : "",
           ctl_missing(shards) ? ctl_totals(shards, totals, sizeof totals) : "");
    ctl_print_limiter(ADMIN_AS(LimiterInfo, limiter));
    return limiter_shards(ctl, table, shards);
}

/* ---- trace ---- */

#define DEFAULT_S 5.0
#define MOST_S 60.0

/* Tells before the trace, not after it, that the file cannot be written. */
static rp_status check_path(const char *path, rp_error *err)
{
    const char *slash = strrchr(path, '/');
    struct stat info;
    if (strcmp(path, "-") == 0)
        return RP_OK;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return err_set(err, RP_IO, "%s cannot be written: it is a folder", path);
    char folder[PATH_MAX] = ".";
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (access(ctl_is_replaced(path) ? folder : path, W_OK) != 0)
        return err_set(err, RP_IO, "%s cannot be written: %s", path, strerror(errno));
    return RP_OK;
}

/* Adds up a number of the trace over its processes. The quotes of a text are escaped there, so a text cannot look like a key. */
static uint64_t sum_of(const char *text, const char *key)
{
    uint64_t sum = 0;
    for (const char *at = text; (at = strstr(at, key)) != NULL; at += strlen(key))
        sum += strtoull(at + strlen(key), NULL, 10);
    return sum;
}

/* Prints the sentence about a shard that has no part in the trace. */
static void print_lost(const char *text)
{
    static const char key[] = "\"shard_missing\": \"";
    const char *at = strstr(text, key);
    if (at)
        printf("%.*s: its part is missing there\n", (int)strcspn(at + sizeof key - 1, "\""), at + sizeof key - 1);
}

static void print_outcome(const char *path, const char *text)
{
    uint64_t dropped = sum_of(text, "\"dropped_spans\": "), missing = sum_of(text, "\"clients_missing\": ");
    printf("wrote %s: open it at https://ui.perfetto.dev or in Chrome's developer tools (Performance, Load profile)\n",
           path);
    if (dropped)
        printf("%" PRIu64
               " spans did not fit: where they are missing, a row ends early. Record fewer seconds to see all\n",
               dropped);
    if (missing)
        printf("%" PRIu64 " clients did not send all of their spans: they have ended, or are too slow\n", missing);
    print_lost(text);
}

int ctl_trace(struct ctl *ctl)
{
    char *text = NULL;
    double seconds = DEFAULT_S;
    char *end = NULL;
    if (ctl->seconds)
        seconds = strtod(ctl->seconds, &end);
    if ((end && (*end || end == ctl->seconds)) || !(seconds >= 0.001 && seconds <= MOST_S))
        return ctl_usage("--seconds takes a number from 0.001 to %g, not '%s'", MOST_S, ctl->seconds);
    rp_status status = check_path(ctl->argv[0], &ctl->err);
    if (status == RP_OK)
        status = rp_admin_trace_json(ctl->client, (int64_t)(seconds * 1e3), &text, &ctl->err);
    if (status == RP_OK) {
        size_t size = strlen(text);
        text[size] = '\n'; /* the line end replaces the end of the text */
        status = ctl_write(ctl->argv[0], text, size + 1, &ctl->err);
        text[size] = '\0';
    }
    if (status == RP_OK && !ctl->json && strcmp(ctl->argv[0], "-") != 0)
        print_outcome(ctl->argv[0], text);
    rp_string_free(&text);
    return status == RP_OK ? CTL_OK : ctl_fail(ctl);
}
