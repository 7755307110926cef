/* The commands that fetch or change something: item, delete, reset, limiter, params. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl/ctl.h"
#include "agent/ctl/top.h"
#include "proto/base/dtype.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/config/schema.h"
#include "replay/params.h"
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
    char *text = json_take(&json);
    if (text && count > max_values) {
        text[strlen(text) - 1] = '\0';
        printf("%s, ... %llu more]\n", text, (unsigned long long)(count - max_values));
    } else {
        printf("%s\n", text ? text : "");
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
    rp_error err = {0};
    rp_batch *batch = NULL;
    uint64_t key;
    int wrong = read_key(ctl->argv[0], &key);
    if (wrong)
        return wrong;
    const char *table = ctl->table;
    rp_status status =
        table ? fetch_from(ctl, table, key, &batch, &err) : fetch_anywhere(ctl, key, &table, &batch, &err);
    if (status != RP_OK)
        return ctl_fail(ctl, &err);
    int rc = CTL_OK;
    if (ctl->json) {
        struct json json = {0};
        json_open(&json, '{');
        json_key(&json, "table");
        json_string(&json, table);
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
    rp_error err = {0};
    if (rp_items_delete(ctl->client, ctl->argv[0], keys, n, ctl->timeout_ms, &change, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    if (ctl->json)
        printf("{\"applied\": %llu, \"missing\": %llu}\n", (unsigned long long)change.applied,
               (unsigned long long)change.missing);
    else
        printf("%llu of %u items removed from %s%s\n", (unsigned long long)change.applied, n, ctl->argv[0],
               change.missing ? "; the others are not in it" : "");
    return change.missing ? CTL_REFUSED : CTL_OK;
}

/* ---- reset ---- */

int ctl_reset(struct ctl *ctl)
{
    rp_info *reply = NULL;
    rp_error err = {0};
    if (rp_admin_reset(ctl->client, ctl->argv[0], ctl->timeout_ms, &reply, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    int rc = CTL_OK;
    format_buffer count;
    if (ctl->json)
        rc = ctl_print_json(reply);
    else
        printf("%s items removed from %s\n", format_count(count, rp_info_u64(reply, "applied")), ctl->argv[0]);
    if (!ctl->json && ctl->shards)
        ctl_print_removed(ADMIN_AS(ChangeReply, reply)->shards);
    rp_info_free(&reply);
    return rc;
}

/* ---- limiter ---- */

static const char *const limiter_keys[] = {"samples_per_insert", "min_size", "min_diff", "max_diff", "error_buffer"};

/* Returns 0, or an exit code after a message. */
static int read_setting(const char *text, rp_limiter_change *change)
{
    double *places[] = {&change->samples_per_insert, &change->min_size, &change->min_diff, &change->max_diff,
                        &change->error_buffer};
    char name[64];
    const char *sign = strchr(text, '=');
    size_t size = sign ? (size_t)(sign - text) : strlen(text);
    snprintf(name, sizeof name, "%.*s", (int)(size < 60 ? size : 60), text);
    uint32_t k = 0;
    while (k < 5 && strcmp(limiter_keys[k], name) != 0)
        k++;
    if (k == 5) {
        const char *near = schema_nearest(name, limiter_keys, 5);
        return near ? ctl_usage("a limiter has no '%s' (did you mean '%s'?)", name, near)
                    : ctl_usage("a limiter has no '%s': samples_per_insert, min_size, min_diff, max_diff, error_buffer",
                                name);
    }
    if (!sign || !schema_parse_real(sign + 1, places[k]))
        return ctl_usage("'%s' needs a number: %s=100", name, name);
    change->set |= 1u << k;
    return 0;
}

static void print_limiter(const char *table, const Replay__LimiterInfo *limiter, const Replay__Shards *shards)
{
    format_buffer a, b;
    char clean[512], totals[48];
    printf("limiter of %s", table);
    if (top_missing(shards))
        printf(" in %s", top_totals(shards, totals, sizeof totals));
    printf(": %s\n", format_clean(clean, sizeof clean, limiter->kind));
    printf("  min_size           %s\n", format_bound(a, limiter->min_size));
    if (ctl_has_ratio(limiter)) {
        printf("  samples_per_insert %.10g\n", limiter->samples_per_insert);
        printf("  min_diff           %s\n", format_bound(a, limiter->min_diff));
        printf("  max_diff           %s\n", format_bound(a, limiter->max_diff));
        printf("  cursor             %.10g\n", limiter->cursor);
    } else {
        printf("  samples_per_insert no ratio\n");
    }
    printf("  so far             %s inserts, %s samples\n", format_count(a, limiter->inserts),
           format_count(b, limiter->samples));
    printf("  inserts            %s\n",
           limiter->inserts_wait[0] ? format_clean(clean, sizeof clean, limiter->inserts_wait) : "may go on");
    printf("  samples            %s\n",
           limiter->samples_wait[0] ? format_clean(clean, sizeof clean, limiter->samples_wait) : "may go on");
}

/* Prints what there is to say about single shards. A change has reached all of them: ask what they have now. */
static int limiter_shards(struct ctl *ctl, const char *table, const Replay__Shards *shards)
{
    rp_info *reply = NULL;
    rp_error err = {0};
    if (!shards && ctl->shards && rp_admin_info(ctl->client, table, 0, ctl->timeout_ms, &reply, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    shards = reply ? ADMIN_AS(InfoReply, reply)->shards : shards;
    if (ctl->shards)
        ctl_print_shards(shards, false);
    ctl_print_missing(shards);
    ctl_print_differences(shards);
    rp_info_free(&reply);
    return CTL_OK;
}

int ctl_limiter(struct ctl *ctl)
{
    rp_limiter_change change = {.struct_size = sizeof change};
    rp_info *reply = NULL;
    rp_error err = {0};
    for (uint32_t i = 1; i < ctl->argc; i++) {
        int rc = read_setting(ctl->argv[i], &change);
        if (rc)
            return rc;
    }
    const char *table = ctl->argv[0];
    rp_status status = change.set ? rp_admin_set_limiter(ctl->client, table, &change, ctl->timeout_ms, &reply, &err)
                                  : rp_admin_info(ctl->client, table, 0, ctl->timeout_ms, &reply, &err);
    const rp_info *limiter = change.set ? reply : rp_info_at(reply, "tables.0.limiter", 0);
    const Replay__Shards *shards = change.set || !reply ? NULL : ADMIN_AS(InfoReply, reply)->shards;
    if (status == RP_OK && !limiter)
        status = err_set(&err, RP_BAD_MESSAGE, "the broker's reply has no limiter of '%s'", table);
    int rc;
    if (status != RP_OK) {
        rc = ctl_fail(ctl, &err);
    } else if (ctl->json) {
        rc = ctl_print_json(limiter);
        ctl_warn_missing(shards, "part is");
    } else {
        print_limiter(table, ADMIN_AS(LimiterInfo, limiter), shards);
        rc = limiter_shards(ctl, table, shards);
    }
    rp_info_free(&reply);
    return rc;
}

/* ---- params ---- */

static int save_slot(struct ctl *ctl, const rp_param *slot)
{
    bool standard = strcmp(ctl->save, "-") == 0;
    FILE *file = standard ? stdout : fopen(ctl->save, "wb");
    rp_error err = {0};
    bool ok = file && fwrite(slot->data, 1, (size_t)slot->bytes, file) == slot->bytes;
    int reason = errno;
    if (file && (standard ? fflush(file) : fclose(file)) != 0) {
        ok = false;
        reason = errno;
    }
    if (!ok) {
        err_set(&err, RP_IO, "cannot write '%s': %s", ctl->save, strerror(reason));
        return ctl_fail(ctl, &err);
    }
    format_buffer size;
    if (!standard)
        printf("version %llu of %s, %s, is in %s\n", (unsigned long long)slot->version, slot->name,
               format_bytes(size, slot->bytes), ctl->save);
    return CTL_OK;
}

static int save_params(struct ctl *ctl)
{
    rp_params *params = NULL;
    rp_error err = {0};
    rp_status status = rp_params_get(ctl->client, ctl->argv[0], 0, 0, &params, &err);
    if (status == RP_DEADLINE_EXCEEDED)
        err_set(&err, RP_NOT_FOUND, "there is no slot '%s'", ctl->argv[0]);
    if (status != RP_OK)
        return ctl_fail(ctl, &err);
    int rc = save_slot(ctl, rp_params_slot(params));
    rp_params_release(&params);
    return rc;
}

static int list_params(struct ctl *ctl, Replay__SlotInfo *const *slots, size_t n)
{
    static const char *const titles[] = {"slot", ">version", ">size", ">age"};
    struct grid grid;
    struct json json = {0};
    format_buffer b;
    const char *only = ctl->argc ? ctl->argv[0] : NULL;
    uint32_t found = 0;
    grid_init(&grid, titles, 4);
    json_open(&json, '{');
    json_key(&json, "slots");
    json_open(&json, '[');
    for (size_t i = 0; i < n; i++) {
        if (only && strcmp(only, slots[i]->name) != 0)
            continue;
        found++;
        json_message(&json, &slots[i]->base);
        grid_add(&grid, slots[i]->name);
        grid_addf(&grid, "%llu", (unsigned long long)slots[i]->version);
        grid_add(&grid, format_bytes(b, slots[i]->bytes));
        grid_add(&grid, format_time(b, slots[i]->age_ns));
    }
    json_close(&json, ']');
    json_close(&json, '}');
    int rc = CTL_OK;
    if (only && !found) {
        rp_error err = {0};
        err_set(&err, RP_NOT_FOUND, "there is no slot '%s'", only);
        rc = ctl_fail(ctl, &err);
    } else if (ctl->json) {
        rc = ctl_print_text(&json);
    } else if (found) {
        grid_print(&grid, stdout);
    } else {
        printf("no slots\n");
    }
    json_fini(&json);
    grid_fini(&grid);
    return rc;
}

int ctl_params(struct ctl *ctl)
{
    if (ctl->save && ctl->argc == 0)
        return ctl_usage("--save needs the name of a slot");
    if (ctl->save)
        return save_params(ctl);
    rp_info *reply = NULL;
    rp_error err = {0};
    if (rp_admin_info(ctl->client, NULL, 0, ctl->timeout_ms, &reply, &err) != RP_OK)
        return ctl_fail(ctl, &err);
    const Replay__InfoReply *info = ADMIN_AS(InfoReply, reply);
    ctl_warn_missing(info->shards, "slots are");
    int rc = list_params(ctl, info->slots, info->n_slots);
    rp_info_free(&reply);
    return rc;
}
