/* Rows of the broker's configuration. */
#include "broker/config/config.h"

#include <dirent.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "broker/select/extension.h"
#include "broker/select/selector.h"
#include "proto/base/dtype.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/need.h"
#include "proto/base/text.h"
#include "proto/base/utf8.h"

#define ROOT(member) offsetof(struct broker_config, member)
#define TABLE(member) offsetof(struct table_config, member)

static const char *const log_levels[] = {"debug", "info", "warn", "error", "off", NULL};
static const char *const journal_words[] = {"off", "never", NULL}; /* JOURNAL_OFF, JOURNAL_NEVER */
static const char *const automatic[] = {"auto", NULL};
static const char *const group_ends[] = {"drop", "deliver", NULL}; /* enum group_incomplete */
static const char *const security_modes[] = {"auto", "none", "curve", NULL};

static const double MAX_ITEMS = 2147483647.0;
static const double KIB = 1024.0;

/* Requests of one key that may wait, unless its line in the list says otherwise: enough for thousands of clients, and few enough that
 * their memory does not matter. */
#define QUOTA_WAITING 25000

static const struct schema_row rows[] = {
    {"service", SCHEMA_STRING, ROOT(service), "tcp://127.0.0.1:7600", 0, 0, NULL, 0,
     "endpoint for client requests: tcp://HOST:PORT (port 0: any free port), ipc://PATH or inproc://NAME"},
    {"ingest", SCHEMA_STRING, ROOT(ingest), "tcp://127.0.0.1:7601", 0, 0, NULL, 0,
     "endpoint to which actors push experience"},
    {"events", SCHEMA_STRING, ROOT(events), "tcp://127.0.0.1:7602", 0, 0, NULL, 0,
     "endpoint on which hints are published"},
    {"advertise", SCHEMA_STRING, ROOT(advertise), "", 0, 200, NULL, 0,
     "name or address under which other machines reach this broker: 10.0.0.5, broker.lab; empty: as bound"},
    {"http", SCHEMA_STRING, ROOT(http), "", 0, 0, NULL, 0,
     "serve the page, metrics and JSON at HOST:PORT (port 0: any free port); empty: not at all. Only replay-broker "
     "does (docs/OPERATE.md)"},
    {"shards", SCHEMA_COUNT, ROOT(shards), "1", 1, CONFIG_MAX_SHARDS, automatic, 0,
     "brokers that are one (docs/OPERATE.md): a number of processes on this machine, or the list of their service "
     "endpoints. Other settings are those of the whole. auto: replay-launch measures how many pay"},
    {"shard", SCHEMA_INT, ROOT(shard), "-1", -1, CONFIG_MAX_SHARDS - 1, NULL, 0,
     "with a list of shards: which of them this broker is, from 0"},
    {"io_threads", SCHEMA_INT, ROOT(io_threads), "1", 1, 16, NULL, 0, "threads that move bytes between sockets"},
    {"memory_limit", SCHEMA_BYTES, ROOT(memory_limit), "4GiB", 1024 * KIB, 9e18, NULL, 0,
     "maximum memory for experience: its data, items with their keys, sessions, and data in flight"},
    {"shared_memory", SCHEMA_BOOL, ROOT(shared_memory), "true", 0, 0, NULL, 0,
     "samplers and writers of the same user on the same host exchange large data in memory instead of through a "
     "socket"},
    {"max_message_bytes", SCHEMA_BYTES, ROOT(max_message_bytes), "64MiB", 4 * KIB, 1024 * 1024 * KIB, NULL, 0,
     "largest message, and therefore the largest item with its chunks"},
    {"peer_backlog_bytes", SCHEMA_BYTES, ROOT(peer_backlog_bytes), "256MiB", 1024 * KIB, 9e18, NULL, 0,
     "replies that a client may leave unread: beyond them its samples wait until it reads. A reply of any size goes "
     "out to a client that has read all others"},
    {"session.expiry", SCHEMA_TIME, ROOT(expiry_ns), "30s", 30e6, 8.64e13, NULL, 0,
     "silence after which a session ends and its waiting items are dropped; its writer can resume it for twenty times "
     "as long"},
    {"seed", SCHEMA_INT, ROOT(seed), "0", 0, 0, NULL, 0, "seed of the selectors; 0: from the system"},
    {"log.level", SCHEMA_ENUM, ROOT(log_level), "info", 0, 0, log_levels, 0, "debug, info, warn, error or off"},
    {"log.file", SCHEMA_STRING, ROOT(log_file), "", 0, 0, NULL, 0,
     "append the log to this file; empty: standard error"},
    {"folder", SCHEMA_STRING, ROOT(folder), "", 0, 0, NULL, 0,
     "keep the tables in this folder, and load what is in it at the start; empty: nothing is kept on disk"},
    {"journal", SCHEMA_TIME, ROOT(journal_ns), "1s", 0, 3.6e12, journal_words, 0,
     "with a folder: record every change before confirming it to a client, so that kill -9 loses nothing. The time "
     "between two syncs is what a power failure may lose; 0s: nothing; never: what the kernel had not written. off: "
     "only checkpoints"},
    {"journal_max", SCHEMA_BYTES, ROOT(journal_max), "1GiB", 1024 * KIB, 9e18, NULL, 0,
     "make a checkpoint when the journal is larger than this and than the stored data; sooner on a small disk "
     "(docs/OPERATE.md bounds the disk)"},
    {"checkpoint.every", SCHEMA_TIME, ROOT(checkpoint_every_ns), "10min", 0, 8.64e14, NULL, 0,
     "with a folder: interval between checkpoints, and there is one at the end; 0s: only on request (replay-ctl "
     "checkpoint, SIGUSR1)"},
    {"checkpoint.keep", SCHEMA_INT, ROOT(checkpoint_keep), "3", 0, 1000, NULL, 0,
     "number of checkpoints to keep; 0: without a journal, none are made"},
    {"checkpoint.load", SCHEMA_STRING, ROOT(checkpoint_load), "newest", 0, 0, NULL, 0,
     "what to start from: newest; drop_tables (newest, without tables that are not configured); salvage (also with a "
     "damaged journal, up to the damage); none; or a checkpoint's number, without the journal after it"},
    {"storage.memory", SCHEMA_BYTES, ROOT(storage_memory), "0", 0, 9e18, NULL, 0,
     "keep this many bytes of chunks in memory and the cold chunks in the folder; 0: all in memory"},
    {"storage.disk", SCHEMA_BYTES, ROOT(storage_disk), "0", 0, 9e18, NULL, 0,
     "maximum bytes of chunks on disk; beyond it tables remove items; 0: no limit but the disk"},
    {"security.mode", SCHEMA_ENUM, ROOT(security_mode), "auto", 0, 0, security_modes, 0,
     "curve: clients need a key, and everything is encrypted; none: whoever reaches a port may do everything; "
     "auto: curve if other machines can reach an endpoint (docs/OPERATE.md)"},
    {"security.keys", SCHEMA_STRING, ROOT(keys_dir), "", 0, 0, NULL, 0,
     "folder of the broker's key and of the list of keys that are let in (replay-ctl key)"},
    {"security.quota", SCHEMA_OPTIONS, ROOT(quota_options), NULL, 0, 2, NULL, 0,
     "with keys, limits of each key that has none of its own: sessions, its open writers (1000; replay-launch writes "
     "what its run needs), and inserts, the items per second of its writers (0: no limit)"},
    {"plugins", SCHEMA_PATHS, ROOT(plugins), NULL, 0, 64, NULL, 0,
     "shared objects with further selectors and extensions; relative to the file, if they exist there"},
    {"tables", SCHEMA_LIST, ROOT(tables), NULL, 1, 1000, NULL, sizeof(struct table_config), "the replay tables"},
    {"tables[].name", SCHEMA_STRING, TABLE(name), NULL, 0, 0, NULL, 0, "name that clients use for the table"},
    {"tables[].max_size", SCHEMA_INT, TABLE(max_size), "1000000", 1, MAX_ITEMS / 2, NULL, 0, "maximum number of items"},
    {"tables[].max_bytes", SCHEMA_BYTES, TABLE(max_bytes), "0", 0, 9e18, NULL, 0,
     "maximum stored bytes of the chunks that its items use; 0: no limit for this table"},
    {"tables[].max_times_sampled", SCHEMA_INT, TABLE(max_times_sampled), "0", 0, 4e9, NULL, 0,
     "an item leaves the table after this many samples; 0: never for that reason"},
    {"tables[].soft_capacity", SCHEMA_BOOL, TABLE(soft_capacity), "false", 0, 0, NULL, 0,
     "let the table grow past max_size (by at most a quarter) and remove the surplus periodically"},
    {"tables[].max_lag", SCHEMA_INT, TABLE(max_lag), "-1", -1, LIMITER_MOST_LAG, NULL, 0,
     "an item that is more than this many versions of the parameters behind is never sampled, and leaves; 0: only "
     "items "
     "of the newest version; -1: items of any version"},
    {"tables[].policy_slot", SCHEMA_STRING, TABLE(policy_slot), "policy", 0, 0, NULL, 0,
     "the parameter slot whose versions are meant: a learner puts them, and writers stamp their items"},
    {"tables[].max_deliveries", SCHEMA_INT, TABLE(max_deliveries), "0", 0, 1e9, NULL, 0,
     "an item that was delivered this often under lease, and never acknowledged, goes to dead_table; 0: never"},
    {"tables[].dead_table", SCHEMA_STRING, TABLE(dead_table), "", 0, 0, NULL, 0, "another table, for such items"},
    {"tables[].group.size", SCHEMA_INT, TABLE(group_size), "0", 0, CONFIG_MAX_BATCH, NULL, 0,
     "items with the same group key are sampled together and leave together, as soon as there are this many; 0: no "
     "groups. Sizes, batches and limiter count items"},
    {"tables[].group.deadline", SCHEMA_TIME, TABLE(group_deadline_ns), "60s", 1e6, 8.64e13, NULL, 0,
     "how long a group waits for its members, from the first on"},
    {"tables[].group.incomplete", SCHEMA_ENUM, TABLE(group_incomplete), "drop", 0, 0, group_ends, 0,
     "what happens then to a group that lacks members: drop, or deliver it as it is"},
    {"tables[].sampler", SCHEMA_KIND, TABLE(sampler), "uniform", 0, 0, NULL, 0,
     "fifo, lifo, uniform, min_heap, max_heap, prioritized (its option: exponent), or a selector of a plug-in"},
    {"tables[].remover", SCHEMA_KIND, TABLE(remover), "fifo", 0, 0, NULL, 0,
     "the same kinds as for the sampler; a negative exponent removes low priorities first"},
    {"tables[].limiter", SCHEMA_KIND, TABLE(limiter_options), "min_size", 0, 0, NULL, 0,
     "none; min_size (min_size: items before the first sample, 1); sample_to_insert_ratio (min_size, "
     "samples_per_insert: the target, and error_buffer: how far samples may run ahead of or behind it; or min_diff and "
     "max_diff: bounds of inserts * samples_per_insert - samples); queue; stack; or lag (batch: items that "
     "the learner takes between two versions; writers wait once max_lag + 1 batches are ahead; min_size)"},
    {"tables[].signature", SCHEMA_TUPLES, TABLE(signature), NULL, 0, 255, NULL, 0,
     "the fields that every item must have: {observation: [float32, 0, 4], reward: float32}, each with its dtype and "
     "its shape, steps first (0: any number of steps); empty: any fields"},
    {"tables[].extensions", SCHEMA_KINDS, TABLE(extensions), NULL, 0, 16, NULL, 0,
     "actions that run inside the table's operations: statistics, priority_diffusion (radius, decay), insert_on_sample "
     "(table), or an extension of a plug-in"},
    {"tables[].metadata", SCHEMA_STRING, TABLE(metadata), "", 0, CONFIG_METADATA_MOST, NULL, 0,
     "any text about the table, for its users: the broker keeps it and shows it to clients; empty: as in the files "
     "that are loaded"},
};

#define LIMIT(member) offsetof(struct limiter_config, member)

static const struct schema_row limiter_rows[] = {
    {"batch", SCHEMA_REAL, LIMIT(batch), "0", -1e18, 1e18, NULL, 0, NULL},
    {"min_size", SCHEMA_REAL, LIMIT(min_size), "1", -1e18, 1e18, NULL, 0, NULL},
    {"samples_per_insert", SCHEMA_REAL, LIMIT(samples_per_insert), "1", -1e18, 1e18, NULL, 0, NULL},
    {"error_buffer", SCHEMA_REAL, LIMIT(error_buffer), "-1", -1, 1e18, NULL, 0, NULL},
    {"min_diff", SCHEMA_REAL, LIMIT(min_diff), "-1e18", -1e18, 1e18, NULL, 0, NULL},
    {"max_diff", SCHEMA_REAL, LIMIT(max_diff), "1e18", -1e18, 1e18, NULL, 0, NULL},
};
/* The rows that a kind has. */
static const struct {
    uint32_t first;
    uint32_t end;
} limiter_has[LIMITER_KINDS] = {[LIMITER_MIN_SIZE] = {1, 2}, [LIMITER_RATIO] = {1, 6}, [LIMITER_LAG] = {0, 2}};
static const struct schema_alias limiter_aliases[] = {
    {"spi", "samples_per_insert"}, {"min_size_to_sample", "min_size"}, {NULL, NULL}};
static const struct schema limiter_schema = {
    .rows = limiter_rows, .n_rows = sizeof limiter_rows / sizeof limiter_rows[0], .aliases = limiter_aliases};

static const struct schema_row quota_rows[] = {
    {"sessions", SCHEMA_INT, offsetof(struct quota, sessions), "1000", 0, 1e9, NULL, 0, NULL},
    {"inserts", SCHEMA_INT, offsetof(struct quota, inserts_per_second), "0", 0, 1e12, NULL, 0, NULL},
};
static const struct schema quota_schema = {.rows = quota_rows, .n_rows = sizeof quota_rows / sizeof quota_rows[0]};

struct limiter_config config_limiter(const struct table_config *table)
{
    struct limiter_config limiter = table->limiter;
    limiter.size = (double)table->max_size;
    limiter.max_lag = (double)table->max_lag;
    return limiter;
}

bool config_field(const rp_option *option, struct field_type *out)
{
    const char *at = option->value;
    char word[32];
    bool named = schema_next(&at, word, sizeof word);
    *out = (struct field_type){.name = option->name, .dtype = named ? dtype_by_name(word) : -1};
    while (schema_next(&at, word, sizeof word)) {
        int64_t size;
        if (out->rank > RP_MAX_RANK || !schema_parse_int(word, &size) || size < (out->rank > 0) || size > UINT32_MAX)
            return false;
        out->shape[out->rank++] = (uint32_t)size;
    }
    return out->dtype >= 0 && !at[strspn(at, " ]")];
}

const char *config_folder(const struct broker_config *config)
{
    return config->folder && config->folder[0] ? config->folder : NULL;
}

bool config_has_journal(const struct broker_config *config)
{
    return config_folder(config) && config->journal_ns != JOURNAL_OFF;
}

bool config_makes_checkpoints(const struct broker_config *config)
{
    return config_folder(config) && (config->checkpoint_keep > 0 || config_has_journal(config));
}

/* True if `http` cannot be reached from other machines, or is off. */
static bool config_http_is_local(const struct broker_config *config)
{
    char endpoint[300];
    if (!config->http || !config->http[0])
        return true;
    snprintf(endpoint, sizeof endpoint, "tcp://%s", config->http);
    return endpoint_is_loopback(endpoint);
}

/* Returns the key of an endpoint that other machines can reach, and the endpoint; NULL: there is none. */
static const char *find_open(const struct broker_config *config, const char **endpoint)
{
    static const char *const keys[] = {"service", "ingest", "events"};
    const char *const own[] = {config->service, config->ingest, config->events};
    for (uint32_t i = 0; i < config->shards.count; i++) {
        *endpoint = config_shard_endpoint(config, i);
        if (*endpoint && !endpoint_is_loopback(*endpoint))
            return "shards"; /* all shards alike: a client has one set of keys */
    }
    for (uint32_t i = 0; i < 3; i++) {
        *endpoint = own[i];
        if (!endpoint_is_loopback(*endpoint))
            return keys[i];
    }
    *endpoint = config->http;
    return config_http_is_local(config) ? NULL : "http";
}

bool config_is_open(const struct broker_config *config)
{
    const char *endpoint;
    return find_open(config, &endpoint) != NULL;
}

bool config_uses_curve(const struct broker_config *config)
{
    return config->security_mode == SECURITY_CURVE ||
           (config->security_mode == SECURITY_AUTO && config_is_open(config));
}

rp_status config_check_keys(const struct broker_config *config, rp_error *err)
{
    if (!config_uses_curve(config) || config->keys_dir[0])
        return RP_OK;
    const char *endpoint, *key = find_open(config, &endpoint);
    if (!key)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "security.mode is curve, and there are no keys for %s: set security.keys to a folder "
                       "(docs/OPERATE.md)",
                       config->service);
    return err_set(err, RP_FAILED_PRECONDITION,
                   "the broker can be reached from other machines (%s: %s), and there are no keys: set security.keys "
                   "to a folder (docs/OPERATE.md), bind to 127.0.0.1, or write security: {mode: none} on a "
                   "network where everybody may do everything",
                   key, endpoint);
}

int64_t config_ingest_budget(const struct broker_config *config)
{
    int64_t eighth = config->memory_limit / 8;
    return eighth < (INT64_C(1) << 30) ? eighth : (INT64_C(1) << 30);
}

struct quota config_quota(const struct broker_config *config)
{
    int64_t quarter = config->memory_limit / 4, least = config->peer_backlog_bytes;
    return (struct quota){
        .sessions = config->quota.sessions,
        .granted_bytes = config_ingest_budget(config) / 4,
        .waiting = QUOTA_WAITING,
        .unread_bytes = quarter > least ? quarter : least,
        .inserts_per_second = config->quota.inserts_per_second,
    };
}

/* ---- memory */
/* "next_observation" beside an "observation" of the same kind is the observation of another item. */
static bool is_shared(const struct table_config *table, const struct field_type *field)
{
    const rp_option *fields = table->signature.data;
    struct field_type other;
    if (strncmp(field->name, "next_", 5) != 0)
        return false;
    for (uint32_t i = 0; i < table->signature.count; i++)
        if (strcmp(fields[i].name, field->name + 5) == 0)
            return config_field(&fields[i], &other) && other.dtype == field->dtype;
    return false;
}

double config_item_bytes(const struct table_config *table)
{
    const rp_option *fields = table->signature.data;
    struct field_type field;
    double sum = 0.0;
    for (uint32_t i = 0; i < table->signature.count; i++) {
        if (!config_field(&fields[i], &field) || is_shared(table, &field))
            continue;
        double bytes = (double)dtype_size(field.dtype);
        for (uint32_t d = 0; d < field.rank; d++)
            bytes *= field.shape[d] > 0 ? (double)field.shape[d] : 1.0; /* any number of steps: at least one */
        sum += bytes;
    }
    return sum;
}

/* Most items that the table may hold: max_bytes holds so many of item_bytes. */
static double most_items(const struct table_config *table, double item_bytes)
{
    double most = (double)table->max_size, bytes = (double)table->max_bytes;
    return bytes > 0 && most * item_bytes > bytes ? floor(bytes / item_bytes) : most;
}

double config_item_overhead(const struct table_config *table)
{
    return (double)(CONFIG_RECORD_BYTES + CONFIG_KEY_BYTES + selector_slot_bytes(table->sampler.kind) +
                    selector_slot_bytes(table->remover.kind) + (table->max_lag >= 0 ? CONFIG_WINDOW_BYTES : 0u) +
                    (table->group_size > 0 ? CONFIG_GROUP_BYTES : 0u));
}

double config_table_bytes(const struct table_config *table, double item_bytes)
{
    if (table->max_bytes > 0 && item_bytes <= 0) /* that is what the user expects */
        return (double)table->max_bytes;
    return most_items(table, item_bytes) * (item_bytes + config_item_overhead(table));
}

static const char *format_size(char out[32], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    uint32_t unit = 0;
    for (; bytes >= 1024.0 && unit < 6; unit++)
        bytes /= 1024.0;
    snprintf(out, 32, bytes < 10.0 && unit > 0 ? "%.1f%s" : "%.0f%s", bytes, units[unit]);
    return out;
}

/* Bytes that tables need. */
struct need {
    uint32_t index;     /* of the largest table, which is the one to change */
    double item, table; /* of that table: bytes of an item's data, of the full table */
    double all;         /* of all tables */
};

static void report_need(const struct broker_config *config, const struct need *need, const char *prefix,
                        struct schema_report *report)
{
    uint32_t index = need->index;
    const struct table_config *table = (const struct table_config *)config->tables.data + index;
    char path[64], each[32], own[32], sum[32], left[32], limit[32], with[64] = "", what[96] = "its max_bytes needs";
    snprintf(path, sizeof path, "%stables[%u].%s", prefix, index, table->max_bytes > 0 ? "max_bytes" : "max_size");
    if (need->item > 0)
        snprintf(what, sizeof what, "%.0f items of %s and %.0fB of overhead need", most_items(table, need->item),
                 format_size(each, need->item), config_item_overhead(table));
    else if (table->max_bytes == 0)
        snprintf(what, sizeof what, "%.0f items of %.0fB without any data need", most_items(table, 0.0),
                 config_item_overhead(table));
    if (need->all > need->table)
        snprintf(with, sizeof with, " (%s with the other tables)", format_size(sum, need->all));
    schema_problem(report, path,
                   "%s %s%s, and tables may take %s: %smemory_limit %s less what is in flight; "
                   "write %smax_bytes, a smaller max_size, or a higher memory_limit",
                   what, format_size(own, need->table), with,
                   format_size(left, (double)(config->memory_limit - config_ingest_budget(config))), prefix,
                   format_size(limit, (double)config->memory_limit), table->max_bytes > 0 ? "a smaller " : "");
}

void config_check_memory(const struct broker_config *config, const double *item_bytes, const char *prefix,
                         struct schema_report *report)
{
    const struct table_config *tables = config->tables.data;
    struct need need = {0};
    if (config->storage_memory > 0) /* chunks that do not fit go to disk */
        return;
    for (uint32_t i = 0; i < config->tables.count; i++) {
        double item = item_bytes ? item_bytes[i] : config_item_bytes(&tables[i]);
        double bytes = config_table_bytes(&tables[i], item);
        need.all += bytes;
        if (bytes > need.table) {
            need.index = i;
            need.item = item;
            need.table = bytes;
        }
    }
    if (need.all > (double)(config->memory_limit - config_ingest_budget(config)))
        report_need(config, &need, prefix, report);
}

/* ---- checks of a file */
static void check_limiter(const struct table_config *table, const char *path, struct schema_report *report)
{
    struct limiter_config config = config_limiter(table);
    char at[64];
    snprintf(at, sizeof at, "%s.limiter", path);
    struct limiter limiter;
    rp_error err = {0};
    if (limiter_init(&limiter, &config, &err) != RP_OK)
        schema_problem(report, at, "%s", err.text);
    else if (limiter.min_size > (double)table->max_size)
        schema_problem(report, at,
                       "min_size %.0f can never be reached: max_size is %lld, so every sample would wait forever",
                       limiter.min_size, (long long)table->max_size);
    else if (limiter.batch > (double)table->max_size)
        schema_problem(report, at,
                       "max_size is %lld, less than batch %.0f: writers would wait for the version after a batch, and "
                       "items of that batch would have been evicted",
                       (long long)table->max_size, limiter.batch);
}

/* A group that could never be inserted or sampled as a whole would wait for ever. */
static void check_group(const struct table_config *table, uint32_t shards, const char *path,
                        struct schema_report *report)
{
    struct limiter_config config = config_limiter(table);
    struct limiter limiter;
    char at[64];
    double size = (double)table->group_size, parts = shards, part = floor((double)table->max_size / parts);
    snprintf(at, sizeof at, "%s.group.size", path);
    if (size == 0 || limiter_init(&limiter, &config, NULL) != RP_OK)
        return;
    double span = limiter_span(&limiter) / parts, needed = size * (1 + limiter.samples_per_insert);
    bool queue = limiter.kind == LIMITER_QUEUE || limiter.kind == LIMITER_STACK;
    if (part < size)
        schema_problem(report, at, "max_size %s%.0f is less than a group of %.0f, which could never be complete",
                       shards > 1 ? "of a shard, " : "", part, size);
    else if (limiter.kind == LIMITER_LAG && fmod(limiter.batch, size) != 0)
        schema_problem(report, at, "batch %.0f of the limiter is not a multiple of %.0f: a batch has whole groups",
                       limiter.batch, size);
    else if (!queue && span > 0 && span < needed)
        schema_problem(report, at,
                       "the limiter's bounds are %g items apart%s, and groups of %.0f need %g, or inserts and samples "
                       "of whole groups could block each other",
                       span, shards > 1 ? " at each shard" : "", size, needed);
    else if (shards > 1 && table->group_incomplete == GROUP_DELIVER)
        schema_problem(report, at, "over shards, incomplete groups are dropped: write incomplete: drop");
}

static void check_signature(const struct table_config *table, const char *path, struct schema_report *report)
{
    const rp_option *fields = table->signature.data;
    struct field_type field;
    for (uint32_t i = 0; i < table->signature.count; i++) {
        char at[256];
        snprintf(at, sizeof at, "%s.signature.%s", path, fields[i].name);
        if (config_field(&fields[i], &field))
            continue;
        if (field.dtype < 0)
            schema_problem(report, at,
                           "%s begins with none of the dtypes bool, int8 ... uint64, float16, bfloat16, float32, "
                           "float64, complex64, complex128: write a field as [float32, 0, 4]",
                           fields[i].value);
        else
            schema_problem(report, at, "%s: dimension %u of the shape must be positive%s; there are at most %u",
                           fields[i].value, field.rank, field.rank == 0 ? ", or 0 for any number of steps" : "",
                           RP_MAX_RANK + 1);
    }
}

/* Reports an unknown kind of selector or extension, with the nearest built-in name. */
static void report_unknown(const char *what, const char *kind, const char *(*builtin_name)(uint32_t), const char *path,
                           struct schema_report *report)
{
    const char *names[16];
    uint32_t n = 0;
    while (n < 16 && builtin_name(n)) {
        names[n] = builtin_name(n);
        n++;
    }
    const char *near = kind ? schema_nearest(kind, names, n) : NULL;
    char list[256] = "";
    for (uint32_t i = 0; i < n; i++)
        text_append(list, sizeof list, "%s%s", i ? ", " : "", names[i]);
    schema_problem(report, path, near ? "no %s '%s' (did you mean '%s'?)" : "no %s '%s': there are %s", what,
                   kind ? kind : "", near ? near : list);
}

/* plugins: an unknown kind may come from a plug-in. It is checked when the tables are created. */
static void check_selector(const struct schema_kind *selector, const char *path, bool plugins,
                           struct schema_report *report)
{
    const rp_selector_ops *ops = selector->kind ? selector_builtin(selector->kind) : NULL;
    if (!ops) {
        if (!plugins)
            report_unknown("selector", selector->kind, selector_builtin_name, path, report);
        return;
    }
    rp_error err = {0};
    void *trial = ops->create(selector->options.data, selector->options.count, 1, 1, &err);
    if (!trial)
        schema_problem(report, path, "%s", err.text);
    else
        ops->destroy(trial);
}

/* True if the name is that of another table, which takes single items. */
static bool is_another(const struct broker_config *config, const struct table_config *table, const char *name)
{
    const struct table_config *tables = config->tables.data;
    for (uint32_t i = 0; i < config->tables.count; i++)
        if (tables[i].name && strcmp(tables[i].name, name) == 0 && &tables[i] != table && tables[i].group_size == 0)
            return true;
    return false;
}

static void check_copy_target(const struct broker_config *config, const struct table_config *table,
                              const struct schema_kind *extension, const char *path, struct schema_report *report)
{
    const rp_option *options = extension->options.data;
    const char *target = extension->options.count == 1 ? options[0].value : NULL;
    if (target && strcmp(extension->kind, "insert_on_sample") == 0 && !is_another(config, table, target))
        schema_problem(report, path,
                       "insert_on_sample needs another table without groups to insert into; '%s' is not one", target);
}

static void check_dead(const struct broker_config *config, const struct table_config *table, const char *path,
                       struct schema_report *report)
{
    char at[64];
    bool named = table->dead_table && table->dead_table[0];
    snprintf(at, sizeof at, "%s.%s", path, named ? "dead_table" : "max_deliveries");
    if (named && !is_another(config, table, table->dead_table))
        schema_problem(report, at,
                       "must name another table without groups, for items that nobody acknowledges; '%s' is not one",
                       table->dead_table);
    if (named != (table->max_deliveries > 0))
        schema_problem(report, at, "max_deliveries and dead_table belong together; write both, or neither");
    else if (named && (table->max_times_sampled != 1 || table->group_size))
        schema_problem(report, at,
                       "only items that are sampled once, and have no groups, have leases; write max_times_sampled: 1");
}

static void check_extension(const struct broker_config *config, const struct table_config *table, uint32_t i,
                            const char *path, struct schema_report *report)
{
    const struct schema_kind *extension = (const struct schema_kind *)table->extensions.data + i;
    const rp_extension_ops *ops = extension->kind ? extension_builtin(extension->kind) : NULL;
    char at[96];
    snprintf(at, sizeof at, "%s.extensions[%u]", path, i);
    if (!ops) {
        if (config->plugins.count == 0)
            report_unknown("extension", extension->kind, extension_builtin_name, at, report);
        return;
    }
    const rp_extension_host host = {0}; /* a built-in one calls nothing while it is made */
    rp_error err = {0};
    void *trial = ops->create(extension->options.data, extension->options.count, 1, &host, &err);
    if (!trial)
        schema_problem(report, at, "%s", err.text);
    else
        ops->destroy(trial);
    check_copy_target(config, table, extension, at, report);
}

static void check_table(const struct broker_config *config, uint32_t i, struct schema_report *report)
{
    const struct table_config *tables = config->tables.data;
    const struct table_config *table = &tables[i];
    char path[32], at[64];
    snprintf(path, sizeof path, "tables[%u]", i);
    snprintf(at, sizeof at, "%s.name", path);
    size_t length = table->name ? strlen(table->name) : 0;
    if (length == 0 || length > 255)
        schema_problem(report, at, "a table needs a name of 1 to 255 characters");
    for (uint32_t j = 0; j < i && length; j++)
        if (tables[j].name && strcmp(tables[j].name, table->name) == 0)
            schema_problem(report, at, "the name '%s' is taken by tables[%u]", table->name, j);
    if (table->metadata && !utf8_valid(table->metadata, strlen(table->metadata))) {
        snprintf(at, sizeof at, "%s.metadata", path);
        schema_problem(report, at, "must be UTF-8; encode other bytes, for example in base64");
    }
    check_limiter(table, path, report);
    check_group(table, config_shards(config), path, report);
    check_signature(table, path, report);
    check_dead(config, table, path, report);
    snprintf(at, sizeof at, "%s.sampler", path);
    check_selector(&table->sampler, at, config->plugins.count > 0, report);
    snprintf(at, sizeof at, "%s.remover", path);
    check_selector(&table->remover, at, config->plugins.count > 0, report);
    for (uint32_t e = 0; e < table->extensions.count; e++)
        check_extension(config, table, e, path, report);
}

/* Returns the port of tcp://HOST:PORT, or "" if it has no port. NULL: another transport. */
static const char *port_of(const char *endpoint)
{
    static const char tcp[] = "tcp://";
    if (strncmp(endpoint, tcp, sizeof tcp - 1) != 0)
        return NULL;
    const char *colon = strrchr(endpoint + sizeof tcp - 1, ':');
    return colon && colon > endpoint + sizeof tcp - 1 ? colon + 1 : "";
}

static void check_endpoint(const char *key, const char *endpoint, struct schema_report *report)
{
    const char *port = port_of(endpoint);
    int64_t number;
    if (!port && (strncmp(endpoint, "ipc://", 6) == 0 || strncmp(endpoint, "inproc://", 9) == 0))
        return;
    if (!port && !strstr(endpoint, "://"))
        schema_problem(report, key, "'%s' has no transport: write tcp://%s, or ipc://PATH", endpoint, endpoint);
    else if (!port)
        schema_problem(report, key, "'%s' is neither tcp://HOST:PORT, ipc://PATH nor inproc://NAME", endpoint);
    else if (strcmp(port, "*") != 0 &&
             (port[strspn(port, "0123456789")] || !schema_parse_int(port, &number) || number > 65535))
        schema_problem(report, key, "'%s' has no port between 0 and 65535 at its end: write tcp://HOST:PORT", endpoint);
}

#define HTTP_BYTES 256u

static void check_http(const char *address, struct schema_report *report)
{
    if (!address || !address[0])
        return;
    const char *port = strrchr(address, ':');
    int64_t number;
    bool good = port && port > address && port[1] && !port[1 + strspn(port + 1, "0123456789")] &&
                schema_parse_int(port + 1, &number) && number <= 65535 && !strchr(address, '/') &&
                strlen(address) < HTTP_BYTES;
    if (!good)
        schema_problem(report, "http", "'%s' is not HOST:PORT: write 127.0.0.1:0 for any free port of this machine",
                       address);
}

static void check_disk(const struct broker_config *config, struct schema_report *report)
{
    if (config->storage_memory && !config_folder(config))
        schema_problem(report, "storage.memory", "cold chunks need a place on disk: write folder");
    if (config_has_journal(config) && config->checkpoint_keep == 0)
        schema_problem(report, "checkpoint.keep", "a journal starts from a checkpoint: write at least 1");
    if (config->storage_memory > config->memory_limit)
        schema_problem(report, "storage.memory", "must be at most memory_limit");
    const char *load = config->checkpoint_load;
    int64_t number;
    if (load && strcmp(load, "newest") != 0 && strcmp(load, "drop_tables") != 0 && strcmp(load, "salvage") != 0 &&
        strcmp(load, "none") != 0 && (!schema_parse_int(load, &number) || number < 1))
        schema_problem(report, "checkpoint.load", "'%s' is neither newest, drop_tables, salvage, none nor a number",
                       load);
}

/* ---- shards */
/* Bounds of the cursor this far away mean "none", and stay so. */
#define NO_BOUND 1e18
#define LEAST_MEMORY (INT64_C(1) << 20)
#define PORTS_PER_SHARD 3 /* service, ingest, events */
#define MOST_PORT 65535
#define ENDPOINT_BYTES 300u

uint32_t config_shards(const struct broker_config *config)
{
    return config->shards.count > 1 ? config->shards.count : 1;
}

const char *config_shard_endpoint(const struct broker_config *config, uint32_t shard)
{
    char *const *list = config->shards.data;
    return shard < config->shards.count && list[shard] && list[shard][0] ? list[shard] : NULL;
}

/* ---- parts of the settings ---- */

/* The parts of all shards add up to the whole, unless that is smaller than the number of shards: 0 often means "no bound". */
static int64_t part_of(int64_t whole, uint32_t shards, uint32_t shard)
{
    int64_t part = whole / shards + (shard < whole % shards);
    return part == 0 && whole > 0 ? 1 : part;
}

static double bound_of(double whole, uint32_t shards)
{
    return fabs(whole) >= NO_BOUND ? whole : whole / shards;
}

/* The parts add up to the whole, so some may be 0: a table over shards needs no more items than one broker's. */
static double items_of(double whole, uint32_t shards, uint32_t shard)
{
    return floor(whole / shards) + (shard < fmod(whole, shards) ? 1 : 0);
}

static void divide_table(struct table_config *table, uint32_t shards, uint32_t shard)
{
    struct limiter_config *limiter = &table->limiter;
    table->max_size = part_of(table->max_size, shards, shard);
    table->max_bytes = part_of(table->max_bytes, shards, shard);
    limiter->min_size = items_of(limiter->min_size, shards, shard);
    limiter->min_diff = bound_of(limiter->min_diff, shards);
    limiter->max_diff = bound_of(limiter->max_diff, shards);
    if (limiter->error_buffer >= 0)
        limiter->error_buffer /= shards;
    double unit = table->group_size > 0 ? (double)table->group_size : 1.0;
    limiter->whole = limiter->batch;
    limiter->batch = unit * items_of(floor(limiter->batch / unit), shards, shard);
}

static void divide(struct broker_config *config, uint32_t shards)
{
    uint32_t shard = (uint32_t)config->shard;
    int64_t *const parts[] = {
        &config->memory_limit,
        &config->journal_max,
        &config->storage_memory,
        &config->storage_disk,
        &config->quota.inserts_per_second,
    };
    struct table_config *tables = config->tables.data;
    for (uint32_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i] = part_of(*parts[i], shards, shard);
    for (uint32_t i = 0; i < config->tables.count; i++)
        divide_table(&tables[i], shards, shard);
}

/* ---- endpoints and folders ---- */

/* Replaces a string of the configuration. */
static void set(char **at, const char *text)
{
    free(*at);
    *at = need_text(text);
}

static bool is_default(const char *key, const char *value)
{
    for (uint32_t i = 0; i < broker_schema.n_rows; i++)
        if (strcmp(broker_schema.rows[i].path, key) == 0)
            return strcmp(broker_schema.rows[i].default_text, value) == 0;
    return false;
}

/* Adds `by` to the port at the end of an address, unless it stands for any free port. */
static rp_status move_port(char **address, int64_t by, rp_error *err)
{
    char moved[ENDPOINT_BYTES];
    const char *colon = strrchr(*address, ':');
    int64_t port = 0;
    if (!colon || !schema_parse_int(colon + 1, &port) || port == 0)
        return RP_OK;
    if (port + by > MOST_PORT)
        return err_set(err, RP_INVALID_ARGUMENT, "%s leaves no ports for all shards: use a smaller one, or port 0",
                       *address);
    snprintf(moved, sizeof moved, "%.*s:%lld", (int)(colon - *address), *address, (long long)(port + by));
    set(address, moved);
    return RP_OK;
}

static rp_status move_endpoint(char **endpoint, int64_t shard, rp_error *err)
{
    char moved[ENDPOINT_BYTES];
    if (strncmp(*endpoint, "tcp://", 6) == 0)
        return move_port(endpoint, PORTS_PER_SHARD * shard, err);
    if (shard == 0)
        return RP_OK;
    snprintf(moved, sizeof moved, "%s-%lld", *endpoint, (long long)shard);
    set(endpoint, moved);
    return RP_OK;
}

/* Returns how a shard binds a listed endpoint: libzmq binds numbers and interfaces, and the list may have names. */
static void to_bind(const char *listed, char out[ENDPOINT_BYTES])
{
    const char *host = listed + 6, *port = strrchr(listed, ':');
    bool tcp = strncmp(listed, "tcp://", 6) == 0;
    bool number = tcp && (host[0] == '[' || host[0] == '*' || host[strspn(host, "0123456789.")] == ':');
    if (!tcp || number)
        snprintf(out, ENDPOINT_BYTES, "%s", listed);
    else
        snprintf(out, ENDPOINT_BYTES, "tcp://%s%s", endpoint_is_loopback(listed) ? "127.0.0.1" : "*", port);
}

/* Listed shards: each has its entry, and any free ports of the same host beside it. */
static void bind_listed(struct broker_config *config)
{
    char service[ENDPOINT_BYTES], beside[ENDPOINT_BYTES];
    to_bind(config_shard_endpoint(config, config->shard > 0 ? (uint32_t)config->shard : 0), service);
    bool tcp = strncmp(service, "tcp://", 6) == 0;
    snprintf(beside, sizeof beside, "%.*s:0", tcp ? (int)(strrchr(service, ':') - service) : 15,
             tcp ? service : "tcp://127.0.0.1");
    if (is_default("service", config->service))
        set(&config->service, service);
    if (is_default("ingest", config->ingest))
        set(&config->ingest, beside);
    if (is_default("events", config->events))
        set(&config->events, beside);
}

static rp_status divide_folder(struct broker_config *config, rp_error *err)
{
    char own[4096];
    if (!config_folder(config))
        return RP_OK;
    if ((size_t)snprintf(own, sizeof own, "%s/shard-%lld", config->folder, (long long)config->shard) >= sizeof own)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the folder %s is too long", config->folder);
    set(&config->folder, own);
    return RP_OK;
}

/* ---- what shards have in common ---- */

/* Hashes the lines of a printed configuration without the comments, which are explanations. */
static uint64_t hash_lines(const char *text, uint64_t hash)
{
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n"), blanks = strspn(line, " ");
        for (size_t i = blanks; i <= length && line[blanks] != '#' && line[i]; i++)
            hash = (hash ^ (uint8_t)line[i]) * UINT64_C(0x100000001B3);
        line += length + (line[length] == '\n');
    }
    return hash;
}

/* Hashes tables and number of shards. */
static uint64_t hash_settings(const struct broker_config *config)
{
    struct schema tables = broker_schema;
    while (tables.n_rows && strcmp(tables.rows[0].path, "tables") != 0) {
        tables.rows++;
        tables.n_rows--;
    }
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    schema_print(&tables, config, out);
    fclose(out);
    uint64_t hash = hash_lines(text, UINT64_C(0xCBF29CE484222325) ^ config_shards(config));
    free(text);
    return hash ? hash : 1;
}

rp_status config_become_shard(struct broker_config *config, rp_error *err)
{
    uint32_t shards = config_shards(config);
    bool listed = config_shard_endpoint(config, 0) != NULL;
    if (shards > 1 && config->shard < 0)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "there are %u shards, and this broker does not know which it is: write shard: 0 to %u, or --set shard=...",
            shards, shards - 1);
    if (listed)
        bind_listed(config);
    if (shards == 1)
        return RP_OK;
    config->settings = hash_settings(config);
    divide(config, shards);
    if (!listed) { /* shards of one machine: each listens at the ports after those of the shard before it */
        RP_TRY(move_endpoint(&config->service, config->shard, err));
        RP_TRY(move_endpoint(&config->ingest, config->shard, err));
        RP_TRY(move_endpoint(&config->events, config->shard, err));
        RP_TRY(move_port(&config->http, config->shard, err));
    }
    return divide_folder(config, err);
}

/* ---- checks ---- */

static bool is_listed(const struct broker_config *config)
{
    bool listed = false;
    for (uint32_t i = 0; i < config_shards(config); i++)
        listed |= config_shard_endpoint(config, i) != NULL;
    return listed;
}

static void check_list(const struct broker_config *config, struct schema_report *report)
{
    for (uint32_t i = 0; i < config_shards(config); i++) {
        const char *own = config_shard_endpoint(config, i);
        char at[32];
        snprintf(at, sizeof at, "shards[%u]", i);
        check_endpoint(at, own ? own : "", report);
        const char *port = own && strncmp(own, "tcp://", 6) == 0 ? strrchr(own, ':') : NULL;
        if (port && (strcmp(port, ":0") == 0 || strcmp(port, ":*") == 0))
            schema_problem(report, at, "'%s' has no port that the other shards and clients could know: write one", own);
        for (uint32_t k = 0; own && k < i; k++)
            if (config_shard_endpoint(config, k) && strcmp(config_shard_endpoint(config, k), own) == 0)
                schema_problem(report, at, "'%s' is that of shard %u, too: each shard needs its own", own, k);
    }
}

/* A key with an address; each shard listens `step` ports above the one before. */
struct address {
    const char *key, *value;
    int64_t step;
};

/* The port of an address; 0: any free one, or none. */
static int64_t port_of_address(const struct address *self)
{
    const char *colon = strncmp(self->value, "ipc://", 6) == 0 ? NULL : strrchr(self->value, ':');
    int64_t port = 0;
    return colon && schema_parse_int(colon + 1, &port) && port > 0 ? port : 0;
}

/* The ports of one key may not meet those of another, whichever shards they belong to. */
static void check_ports(const struct address *own, const struct address *other, uint32_t shards,
                        struct schema_report *report)
{
    int64_t port = port_of_address(own), taken = port_of_address(other);
    for (uint32_t i = 0; i < shards && port > 0 && taken > 0; i++) {
        int64_t above = port + own->step * i - taken;
        if (above < 0 || above % other->step != 0 || above / other->step >= shards)
            continue;
        schema_problem(report, own->key,
                       "shard %u would listen at port %lld, as shard %lld does for '%s': ports of a shard are %d above "
                       "those of the shard before. Take ports that are next to each other, or port 0",
                       i, (long long)port + own->step * i, (long long)above / other->step, other->key, PORTS_PER_SHARD);
        return;
    }
}

static void check_processes(const struct broker_config *config, uint32_t shards, struct schema_report *report)
{
    const struct address addresses[] = {{"service", config->service, PORTS_PER_SHARD},
                                        {"ingest", config->ingest, PORTS_PER_SHARD},
                                        {"events", config->events, PORTS_PER_SHARD},
                                        {"http", config->http ? config->http : "", 1}};
    for (uint32_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        if (strncmp(addresses[i].value, "inproc://", 9) == 0)
            schema_problem(report, addresses[i].key,
                           "'%s' is reached from inside one process, and each shard is a process: use tcp or ipc",
                           addresses[i].value);
        if (port_of_address(&addresses[i]) + addresses[i].step * (shards - 1) > MOST_PORT)
            schema_problem(report, addresses[i].key, "'%s' leaves no ports for %u shards: use a smaller one, or port 0",
                           addresses[i].value, shards);
        for (uint32_t k = 0; k < i; k++)
            check_ports(&addresses[i], &addresses[k], shards, report);
    }
}

/* The room that limiter_init demands of a part, in the numbers of the whole. False: it is missing, and reported. */
static bool check_room(const struct limiter_config *limiter, uint32_t shards, const char *at,
                       struct schema_report *report)
{
    double spi = limiter->samples_per_insert, least = fmax(1.0, spi) * shards;
    double width = limiter->max_diff - limiter->min_diff;
    bool buffer = limiter->error_buffer >= 0;
    if (limiter->kind != LIMITER_RATIO || !(spi > 0) || !isfinite(spi) || isnan(width))
        return true; /* the check of the whole says what is wrong */
    if (buffer ? limiter->error_buffer >= least : width >= 2.0 * least)
        return true;
    if (buffer)
        schema_problem(
            report, at,
            "error_buffer %g is too small for %u shards: with samples_per_insert %g inserts and samples of a "
            "shard could block each other; write at least %g, or fewer shards",
            limiter->error_buffer, shards, spi, least);
    else
        schema_problem(
            report, at,
            "max_diff %g less min_diff %g is too small for %u shards: with samples_per_insert %g inserts and "
            "samples of a shard could block each other; let them be %g apart, or write fewer shards",
            limiter->max_diff, limiter->min_diff, shards, spi, 2.0 * least);
    return false;
}

static void check_limiter_divides(const struct table_config *table, uint32_t shards, const char *path,
                                  struct schema_report *report)
{
    struct table_config part = *table;
    struct limiter limiter;
    rp_error err = {0};
    char at[64];
    snprintf(at, sizeof at, "%s.limiter", path);
    if (table->limiter.kind == LIMITER_STACK)
        schema_problem(report, at, "a stack over shards has no meaning: nobody knows the newest item of all shards");
    bool lag = table->limiter.kind == LIMITER_LAG;
    double parts = table->group_size > 0 ? (double)shards * (double)table->group_size : shards;
    if (lag && table->limiter.batch < parts) {
        schema_problem(report, at, "batch %.0f cannot be divided among %u shards: write at least %.0f, or fewer shards",
                       table->limiter.batch, shards, parts);
        return;
    }
    if (lag && table->limiter.min_size > 1)
        schema_problem(report, at,
                       "room for inserts moves among %u shards when items are sampled, and before there are min_size "
                       "%.0f of them none is: the writers of one shard could wait for ever. Write min_size: 1",
                       shards, table->limiter.min_size);
    if (table->max_size < shards || (table->max_bytes > 0 && table->max_bytes < shards))
        schema_problem(report, path, "%s of %lld cannot be divided among %u shards: write more, or fewer shards",
                       table->max_size < shards ? "max_size" : "max_bytes",
                       (long long)(table->max_size < shards ? table->max_size : table->max_bytes), shards);
    if (!check_room(&table->limiter, shards, at, report))
        return;
    divide_table(&part, shards, shards - 1); /* the smallest part */
    struct limiter_config config = config_limiter(&part);
    config.part = true;
    if (limiter_init(&limiter, &config, &err) != RP_OK)
        schema_problem(report, at, "each of %u shards has its part of the limiter, and there: %s", shards, err.text);
}

bool config_sampler_divides(const struct table_config *table, const rp_selector_ops *sampler)
{
    bool once = table->limiter.kind == LIMITER_LAG && table->max_times_sampled == 1;
    return sampler->mass || (sampler == &selector_fifo && (table->limiter.kind == LIMITER_QUEUE || once));
}

void config_check_shards(const struct broker_config *config, struct schema_report *report)
{
    const struct table_config *tables = config->tables.data;
    uint32_t shards = config_shards(config);
    if (config->shard >= (int64_t)shards)
        schema_problem(report, "shard", "%lld is not the number of one of %u shards, which count from 0",
                       (long long)config->shard, shards);
    if (is_listed(config))
        check_list(config, report);
    if (shards == 1)
        return;
    if (!is_listed(config))
        check_processes(config, shards, report);
    if (config->shard >= 0 && !is_listed(config))
        schema_problem(report, "shard",
                       "is for a list of shards: with a number of them, replay-broker starts all of them itself");
    if (config->memory_limit / shards < LEAST_MEMORY)
        schema_problem(report, "memory_limit", "must be at least 1MiB for each of %u shards", shards);
    for (uint32_t i = 0; i < config->tables.count; i++) {
        char path[48], at[64];
        snprintf(path, sizeof path, "tables[%u]", i);
        snprintf(at, sizeof at, "%s.sampler", path);
        const rp_selector_ops *ops = tables[i].sampler.kind ? selector_builtin(tables[i].sampler.kind) : NULL;
        if (ops && !config_sampler_divides(&tables[i], ops))
            schema_problem(report, at, CONFIG_NO_MASS, tables[i].sampler.kind);
        check_limiter_divides(&tables[i], shards, path, report);
    }
}

/* ---- folders of shards */
/* True if a broker has written there. */
static bool has_tables(const char *folder)
{
    DIR *files = opendir(folder);
    bool found = false;
    for (const struct dirent *file; files && !found && (file = readdir(files));) {
        const char *dot = strrchr(file->d_name, '.');
        found = dot && strcmp(dot, ".replay") == 0;
    }
    if (files)
        closedir(files);
    return found;
}

/* Returns the number of shards that have a folder of their own there, shard-0 ..., if at least one has written. */
static uint32_t count_parts(const char *folder)
{
    char path[4096 + 32];
    struct stat status;
    uint32_t n = 0;
    bool written = false;
    for (uint32_t i = 0; i <= CONFIG_MAX_SHARDS; i++) {
        snprintf(path, sizeof path, "%.4096s/shard-%u", folder, i);
        if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode))
            continue;
        n = i + 1;
        written = written || has_tables(path);
    }
    return written ? n : 0;
}

void config_make_parts(const struct broker_config *config, const char *folder)
{
    char path[4096 + 32];
    for (uint32_t i = 0; folder && i < config_shards(config); i++) {
        snprintf(path, sizeof path, "%.4096s/shard-%u/", folder, i);
        io_make_parents(path, 0777);
    }
}

rp_status config_check_folder(const struct broker_config *config, const char *folder, rp_error *err)
{
    uint32_t shards = config_shards(config), parts = folder ? count_parts(folder) : 0;
    bool alone = folder && has_tables(folder), one = config->shard >= 0 || config_shard_endpoint(config, 0);
    bool unread = config->checkpoint_load && strcmp(config->checkpoint_load, "none") == 0;
    bool same =
        parts == 0 || (one ? parts <= shards : parts == shards); /* one shard knows only of those that have begun */
    if (unread || (shards > 1 ? !alone && same : parts == 0))
        return RP_OK;
    char had[64] = "a broker without shards", has[32] = "none";
    if (!alone || shards == 1)
        snprintf(had, sizeof had, "%u shard%s of a broker", parts, parts == 1 ? "" : "s");
    if (shards > 1)
        snprintf(has, sizeof has, "%u", shards);
    return err_set(
        err, RP_FAILED_PRECONDITION,
        "the tables in '%s' are those of %s, and this broker has %s: an item stays with its shard. Write the "
        "shards that the tables are of, name another folder, or write checkpoint.load: none to begin with "
        "empty tables",
        folder, had, has);
}

/* ---- the schema */
static const char *limiter_name(uint32_t kind)
{
    return kind < LIMITER_KINDS ? limiter_kind_name((enum limiter_kind)kind) : NULL;
}

static bool limiter_row(uint32_t kind, const char *name)
{
    uint32_t i = limiter_has[kind].first;
    while (i < limiter_has[kind].end && strcmp(limiter_rows[i].path, name) != 0)
        i++;
    return i < limiter_has[kind].end;
}

/* An option that the kind does not have would otherwise do nothing. */
static void check_limiter_has(enum limiter_kind kind, const char *name, const char *path, struct schema_report *report)
{
    char at[80];
    uint32_t other = LIMITER_NONE;
    while (other < LIMITER_KINDS && !limiter_row(other, name))
        other++;
    snprintf(at, sizeof at, "%s.%s", path, name);
    if (other < LIMITER_KINDS && !limiter_row(kind, name))
        schema_problem(report, at, "belongs to limiter %s, and this one is %s: write kind: %s, or leave %s out",
                       limiter_name(other), limiter_name(kind), limiter_name(other), name);
}

static void read_limiter(struct table_config *table, uint32_t index, struct schema_report *report)
{
    char path[48];
    uint32_t kind = 0;
    snprintf(path, sizeof path, "tables[%u].limiter", index);
    while (limiter_name(kind) && strcmp(limiter_name(kind), table->limiter_options.kind) != 0)
        kind++;
    if (!limiter_name(kind))
        report_unknown("limiter", table->limiter_options.kind, limiter_name, path, report);
    schema_read_options(&limiter_schema, &table->limiter_options.options, path, &table->limiter, report);
    table->limiter.kind = limiter_name(kind) ? (enum limiter_kind)kind : LIMITER_MIN_SIZE;
    for (uint32_t i = 0; limiter_name(kind) && i < table->limiter_options.options.count; i++)
        check_limiter_has(table->limiter.kind, ((const rp_option *)table->limiter_options.options.data)[i].name, path,
                          report);
}

void config_derive(struct broker_config *config, struct schema_report *report)
{
    struct table_config *tables = config->tables.data;
    schema_read_options(&quota_schema, &config->quota_options, "security.quota", &config->quota, report);
    for (uint32_t i = 0; i < config->tables.count; i++)
        read_limiter(&tables[i], i, report);
}

static void config_check(void *root, struct schema_report *report)
{
    struct broker_config *config = root;
    config_derive(config, report);
    check_endpoint("service", config->service, report);
    check_endpoint("ingest", config->ingest, report);
    check_endpoint("events", config->events, report);
    if (config->advertise[0] && !endpoint_is_host(config->advertise))
        schema_problem(
            report, "advertise",
            "'%s' is not a name or an address: write it without tcp:// and port, an IPv6 address in brackets: "
            "'[fd00::1]'",
            config->advertise);
    check_http(config->http, report);
    check_disk(config, report);
    config_check_shards(config, report); /* first: with shards a limiter needs more room */
    for (uint32_t i = 0; i < config->tables.count; i++)
        check_table(config, i, report);
}

/* Names that Reverb, Acme and others use. */
const struct schema_alias broker_aliases[] = {
    {"address", "service"},
    {"endpoint", "service"},
    {"buffer_size", "max_size"},
    {"capacity", "max_size"},
    {"max_replay_size", "max_size"},
    {"replay_size", "max_size"},
    {"min_replay_size", "limiter.min_size"},
    {"min_size_to_sample", "limiter.min_size"},
    {"rate_limiter", "limiter"},
    {"spi", "limiter.samples_per_insert"},
    {"max_memory", "memory_limit"},
    {NULL, NULL},
};

const struct schema broker_schema = {
    .name = "broker",
    .rows = rows,
    .n_rows = sizeof rows / sizeof rows[0],
    .root_size = sizeof(struct broker_config),
    .aliases = broker_aliases,
    .check = config_check,
};

void config_check_strictly(void *root, struct schema_report *report)
{
    rp_error err = {0};
    config_check(root, report);
    config_check_memory(root, NULL, "", report);
    if (config_check_keys(root, &err) != RP_OK)
        schema_problem(report, "security.keys", "%s", err.text);
}

const char broker_default_yaml[] =
    "# The embedded default: one prioritized table, on ports of the loopback interface.\n"
    "tables:\n"
    "  - name: replay\n"
    "    max_size: 1000000\n"
    "    sampler: {kind: prioritized, exponent: 0.6}\n"
    "    remover: fifo\n"
    "    limiter: {kind: min_size, min_size: 1}\n";
