/* Rows of the broker's configuration. */
#include "broker/config/config.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "proto/base/endpoint.h"
#include "proto/base/error.h"

#define ROOT(member) offsetof(struct broker_config, member)
#define TABLE(member) offsetof(struct table_config, member)
#define FIELD(member) offsetof(struct field_config, member)
#define EXTENSION(member) offsetof(struct extension_config, member)

static const char *const log_levels[] = {"debug", "info", "warn", "error", "off", NULL};
static const char *const fsync_modes[] = {"never", "interval", "always", NULL};
static const char *const limiter_kinds[] = {"none", "min_size", "sample_to_insert_ratio", "queue", "stack", NULL};

static const char *const automatic[] = {"auto", NULL};
static const char *const security_modes[] = {"auto", "none", "curve", NULL};

static const double MAX_ITEMS = 2147483647.0;
static const double KIB = 1024.0;

static const struct schema_row rows[] = {
    {"service", SCHEMA_STRING, ROOT(service), "tcp://127.0.0.1:7600", 0, 0, NULL, 0,
     "endpoint for client requests: tcp://HOST:PORT (port 0: any free port), ipc://PATH or inproc://NAME"},
    {"ingest", SCHEMA_STRING, ROOT(ingest), "tcp://127.0.0.1:7601", 0, 0, NULL, 0,
     "endpoint to which actors push experience"},
    {"events", SCHEMA_STRING, ROOT(events), "tcp://127.0.0.1:7602", 0, 0, NULL, 0,
     "endpoint on which hints are published"},
    {"advertise", SCHEMA_STRING, ROOT(advertise), "", 0, 200, NULL, 0,
     "name or address under which other machines reach this broker, where that is not the bound one: 10.0.0.5, "
     "broker.lab; clients and the endpoints file get it; empty: as bound"},
    {"endpoints_file", SCHEMA_STRING, ROOT(endpoints_file), "", 0, 0, NULL, 0,
     "write the bound endpoints to this file"},
    {"http", SCHEMA_STRING, ROOT(http), "", 0, 0, NULL, 0,
     "serve metrics and JSON at HOST:PORT, such as 127.0.0.1:0 (port 0: any free port); empty: not at all "
     "(METRICS.md). "
     "The program replay-broker does, embedded brokers do not"},
    {"shards", SCHEMA_COUNT, ROOT(shards), "1", 1, CONFIG_MAX_SHARDS, automatic, 0,
     "brokers that are one logical broker (SHARDS.md): a number of processes on this machine, or the service endpoints "
     "of brokers that run anywhere, each with the same list. All other settings are those of the logical broker. auto: "
     "replay-launch measures how many pay; elsewhere it is 1"},
    {"shard", SCHEMA_INT, ROOT(shard), "-1", -1, CONFIG_MAX_SHARDS - 1, NULL, 0,
     "with a list of shards: which of them this broker is, from 0"},
    {"pin", SCHEMA_BOOL, ROOT(pin), "false", 0, 0, NULL, 0,
     "bind the core thread of each shard to a core of its own, where there are enough"},
    {"io_threads", SCHEMA_INT, ROOT(io_threads), "1", 1, 16, NULL, 0, "threads that move bytes between sockets"},
    {"memory_limit", SCHEMA_BYTES, ROOT(memory_limit), "4GiB", 1024 * KIB, 9e18, NULL, 0,
     "maximum memory for experience: its data, items with their keys, sessions, and data in flight"},
    {"ingest_budget", SCHEMA_BYTES, ROOT(ingest_budget), "0", 0, 9e18, NULL, 0,
     "share of memory_limit for data in flight; 0: an eighth of it, at most 1GiB"},
    {"max_message_bytes", SCHEMA_BYTES, ROOT(max_message_bytes), "64MiB", 4 * KIB, 1024 * 1024 * KIB, NULL, 0,
     "largest message, and therefore the largest item with its chunks"},
    {"peer_backlog_bytes", SCHEMA_BYTES, ROOT(peer_backlog_bytes), "256MiB", 1024 * KIB, 9e18, NULL, 0,
     "replies that a client may leave unread before it gets errors instead"},
    {"credit.window_items", SCHEMA_INT, ROOT(window_items), "20000", 1, 1e9, NULL, 0,
     "maximum number of unconfirmed items of one session in one table"},
    {"credit.window_bytes", SCHEMA_BYTES, ROOT(window_bytes), "64MiB", 4 * KIB, 9e18, NULL, 0,
     "maximum number of unconfirmed bytes of one session"},
    {"session.notice", SCHEMA_TIME, ROOT(notice_ns), "100us", 0, 1e9, NULL, 0,
     "minimum time between two notices of accepted items to a writer while no data arrives, and ten times as long "
     "while it does; 0s: notify at once"},
    {"session.heartbeat", SCHEMA_TIME, ROOT(heartbeat_ns), "1s", 1e6, 3.6e12, NULL, 0,
     "interval at which a session must send a heartbeat"},
    {"session.expiry", SCHEMA_TIME, ROOT(expiry_ns), "30s", 1e6, 8.64e13, NULL, 0,
     "silence after which a session ends and its waiting items are dropped"},
    {"session.tombstone", SCHEMA_TIME, ROOT(tombstone_ns), "10min", 0, 8.64e14, NULL, 0,
     "how long an ended session can still be resumed"},
    {"drain_timeout", SCHEMA_TIME, ROOT(drain_timeout_ns), "2s", 0, 6e11, NULL, 0,
     "time for sending the last replies after SIGTERM"},
    {"seed", SCHEMA_INT, ROOT(seed), "0", 0, 0, NULL, 0, "seed of the selectors; 0: from the system"},
    {"log.level", SCHEMA_ENUM, ROOT(log_level), "info", 0, 0, log_levels, 0, "debug, info, warn, error or off"},
    {"log.file", SCHEMA_STRING, ROOT(log_file), "", 0, 0, NULL, 0,
     "append the log to this file; empty: standard error"},
    {"journal.dir", SCHEMA_STRING, ROOT(journal_dir), "", 0, 0, NULL, 0,
     "record every change in this folder before confirming it to a client, so that kill -9 loses nothing; empty: no "
     "journal"},
    {"journal.fsync", SCHEMA_ENUM, ROOT(journal_fsync), "interval", 0, 0, fsync_modes, 0,
     "what a power failure or kernel crash may lose: never (what the kernel had not written), interval (the last "
     "interval), always (nothing)"},
    {"journal.interval", SCHEMA_TIME, ROOT(journal_interval_ns), "1s", 1e6, 3.6e12, NULL, 0,
     "with fsync interval: time between two syncs"},
    {"journal.max", SCHEMA_BYTES, ROOT(journal_max), "1GiB", 1024 * KIB, 9e18, NULL, 0,
     "make a checkpoint when the journal since the last one is larger than this and larger than the stored data; "
     "sooner on a small disk. Maximum disk usage: (checkpoint.keep + 3) * (max(journal.max, stored) + 2 * stored + "
     "1MiB), see DISK.md"},
    {"checkpoint.dir", SCHEMA_STRING, ROOT(checkpoint_dir), "", 0, 0, NULL, 0,
     "make checkpoints in this folder and load the newest at the start; empty: only with a journal, in its folder"},
    {"checkpoint.every", SCHEMA_TIME, ROOT(checkpoint_every_ns), "10min", 0, 8.64e14, NULL, 0,
     "interval between checkpoints; 0s: only on request (replay-ctl checkpoint, SIGUSR1) or at the end"},
    {"checkpoint.keep", SCHEMA_INT, ROOT(checkpoint_keep), "3", 1, 1000, NULL, 0, "number of checkpoints to keep"},
    {"checkpoint.on_exit", SCHEMA_BOOL, ROOT(checkpoint_on_exit), "true", 0, 0, NULL, 0,
     "make a checkpoint when asked to stop"},
    {"checkpoint.load", SCHEMA_STRING, ROOT(checkpoint_load), "newest", 0, 0, NULL, 0,
     "what to start from: newest, salvage (as newest, and a damaged journal is applied up to the damage instead of "
     "refused), none, or the number of a checkpoint (without the journal after it)"},
    {"storage.dir", SCHEMA_STRING, ROOT(storage_dir), "", 0, 0, NULL, 0,
     "folder for chunks that do not fit into memory; empty: the folder of the journal or of the checkpoints"},
    {"storage.memory", SCHEMA_BYTES, ROOT(storage_memory), "0", 0, 9e18, NULL, 0,
     "keep this many bytes of chunks in memory and the cold chunks on disk; 0: all in memory"},
    {"storage.disk", SCHEMA_BYTES, ROOT(storage_disk), "0", 0, 9e18, NULL, 0,
     "maximum bytes of chunks on disk; beyond it tables remove items; 0: no limit but the disk"},
    {"security.mode", SCHEMA_ENUM, ROOT(security_mode), "auto", 0, 0, security_modes, 0,
     "curve: clients need a key of security.keys, and everything is encrypted; none: whoever reaches a port may do "
     "everything; auto: curve if an endpoint can be reached from other machines (SECURITY.md)"},
    {"security.keys", SCHEMA_STRING, ROOT(keys_dir), "", 0, 0, NULL, 0,
     "folder of the broker's key and of the list of keys that are let in (replay-ctl key)"},
    {"security.quota.sessions", SCHEMA_INT, ROOT(quota.sessions), "1000", 0, 1e9, NULL, 0,
     "with keys: open writers of one key; 0: no limit. replay-launch writes what its run needs"},
    {"security.quota.granted", SCHEMA_BYTES, ROOT(quota.granted_bytes), "0", 0, 9e18, NULL, 0,
     "with keys: bytes that the writers of one key may have in flight; 0: a quarter of ingest_budget"},
    {"security.quota.waiting", SCHEMA_INT, ROOT(quota.waiting), "25000", 0, 1e9, NULL, 0,
     "with keys: requests of one key that wait for an answer, of 100000 for all keys together; each KiB of a request "
     "counts as one more; 0: no limit of its own"},
    {"security.quota.unread", SCHEMA_BYTES, ROOT(quota.unread_bytes), "0", 0, 9e18, NULL, 0,
     "with keys: replies that all clients of one key together may leave unread; 0: a quarter of memory_limit, or "
     "peer_backlog_bytes if that is more"},
    {"security.quota.inserts", SCHEMA_INT, ROOT(quota.inserts_per_second), "0", 0, 1e12, NULL, 0,
     "with keys: items per second that the writers of one key may insert; 0: no limit"},
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
    {"tables[].remove_every", SCHEMA_TIME, TABLE(remove_every_ns), "1s", 1e6, 3.6e12, NULL, 0,
     "with soft_capacity: interval between removals"},
    {"tables[].sampler.kind", SCHEMA_STRING, TABLE(sampler.kind), "uniform", 0, 0, NULL, 0,
     "fifo, lifo, uniform, min_heap, max_heap, prioritized, or a selector of a plug-in"},
    {"tables[].sampler.options", SCHEMA_OPTIONS, TABLE(sampler.options), NULL, 0, 32, NULL, 0, "prioritized: exponent"},
    {"tables[].remover.kind", SCHEMA_STRING, TABLE(remover.kind), "fifo", 0, 0, NULL, 0,
     "the same kinds as for the sampler"},
    {"tables[].remover.options", SCHEMA_OPTIONS, TABLE(remover.options), NULL, 0, 32, NULL, 0,
     "the same options; a negative exponent removes low priorities first"},
    {"tables[].limiter.kind", SCHEMA_ENUM, TABLE(limiter.kind), "min_size", 0, 0, limiter_kinds, 0,
     "none, min_size, sample_to_insert_ratio, queue or stack"},
    {"tables[].limiter.samples_per_insert", SCHEMA_REAL, TABLE(limiter.samples_per_insert), "1", -1e18, 1e18, NULL, 0,
     "sample_to_insert_ratio: the target"},
    {"tables[].limiter.min_size", SCHEMA_REAL, TABLE(limiter.min_size), "1", -1e18, 1e18, NULL, 0,
     "number of items before the first sample"},
    {"tables[].limiter.error_buffer", SCHEMA_REAL, TABLE(limiter.error_buffer), "-1", -1, 1e18, NULL, 0,
     "sample_to_insert_ratio: how far samples may run ahead of or behind the target; -1: use min_diff and max_diff"},
    {"tables[].limiter.min_diff", SCHEMA_REAL, TABLE(limiter.min_diff), "-1e18", -1e18, 1e18, NULL, 0,
     "sample_to_insert_ratio: minimum of inserts * samples_per_insert - samples"},
    {"tables[].limiter.max_diff", SCHEMA_REAL, TABLE(limiter.max_diff), "1e18", -1e18, 1e18, NULL, 0,
     "sample_to_insert_ratio: maximum of inserts * samples_per_insert - samples"},
    {"tables[].limiter.size", SCHEMA_REAL, TABLE(limiter.size), "0", 0, 1e9, NULL, 0,
     "queue and stack: number of items that may wait in it; 0: max_size"},
    {"tables[].signature", SCHEMA_LIST, TABLE(signature), NULL, 0, 255, NULL, sizeof(struct field_config),
     "the fields that every item must have; empty: any fields"},
    {"tables[].signature[].name", SCHEMA_STRING, FIELD(name), NULL, 0, 0, NULL, 0, "name of the field"},
    {"tables[].signature[].dtype", SCHEMA_STRING, FIELD(dtype), NULL, 0, 0, NULL, 0,
     "element type: float32, uint8, ..."},
    {"tables[].signature[].shape", SCHEMA_INTS, FIELD(shape), NULL, 0, 9, NULL, 0,
     "shape of the whole field, its steps first; 0: any number of steps"},
    {"tables[].extensions", SCHEMA_LIST, TABLE(extensions), NULL, 0, 16, NULL, sizeof(struct extension_config),
     "actions that run inside the table's operations"},
    {"tables[].extensions[].kind", SCHEMA_STRING, EXTENSION(kind), NULL, 0, 0, NULL, 0,
     "statistics, priority_diffusion, insert_on_sample, or an extension of a plug-in"},
    {"tables[].extensions[].options", SCHEMA_OPTIONS, EXTENSION(options), NULL, 0, 32, NULL, 0,
     "priority_diffusion: radius, decay; insert_on_sample: table"},
    {"tables[].policy_slot", SCHEMA_STRING, TABLE(policy_slot), "policy", 0, 0, NULL, 0,
     "parameter slot whose version determines how stale an item is"},
    {"tables[].metadata", SCHEMA_STRING, TABLE(metadata), "", 0, CONFIG_METADATA_MOST, NULL, 0,
     "any text about the table, for its users: the broker keeps it and shows it to clients; empty: as in the files "
     "that "
     "are loaded"},
};

struct limiter_config config_limiter(const struct limiter_section *section)
{
    return (struct limiter_config){
        .kind = (enum limiter_kind)section->kind,
        .samples_per_insert = section->samples_per_insert,
        .min_size = section->min_size,
        .error_buffer = section->error_buffer,
        .min_diff = section->min_diff,
        .max_diff = section->max_diff,
        .size = section->size,
    };
}

const char *config_folder(const struct broker_config *config)
{
    const char *const folders[] = {config->journal_dir, config->checkpoint_dir, config->storage_dir};
    for (uint32_t i = 0; i < 3; i++)
        if (folders[i] && folders[i][0])
            return folders[i];
    return NULL;
}

bool config_makes_checkpoints(const struct broker_config *config)
{
    return (config->journal_dir && config->journal_dir[0]) || (config->checkpoint_dir && config->checkpoint_dir[0]);
}

bool config_http_is_local(const struct broker_config *config)
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
                       "(docs/SECURITY.md)",
                       config->service);
    return err_set(err, RP_FAILED_PRECONDITION,
                   "the broker can be reached from other machines (%s: %s), and there are no keys: set security.keys "
                   "to a folder (docs/SECURITY.md), bind to 127.0.0.1, or write security: {mode: none} on a "
                   "network where everybody may do everything",
                   key, endpoint);
}

int64_t config_ingest_budget(const struct broker_config *config)
{
    if (config->ingest_budget > 0)
        return config->ingest_budget;
    int64_t eighth = config->memory_limit / 8;
    return eighth < (INT64_C(1) << 30) ? eighth : (INT64_C(1) << 30);
}

struct quota config_quota(const struct broker_config *config)
{
    struct quota quota = config->quota;
    int64_t quarter = config->memory_limit / 4, least = config->peer_backlog_bytes;
    if (quota.granted_bytes == 0)
        quota.granted_bytes = config_ingest_budget(config) / 4;
    if (quota.unread_bytes == 0)
        quota.unread_bytes = quarter > least ? quarter : least;
    return quota;
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
    {"rate_limiter", "limiter.kind"},
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

static void check_strictly(const void *root, struct schema_report *report)
{
    rp_error err = {0};
    config_check(root, report);
    config_check_memory(root, NULL, "", report);
    if (config_check_keys(root, &err) != RP_OK)
        schema_problem(report, "security.keys", "%s", err.text);
}

const struct schema broker_schema_strict = {
    .name = "broker",
    .rows = rows,
    .n_rows = sizeof rows / sizeof rows[0],
    .root_size = sizeof(struct broker_config),
    .aliases = broker_aliases,
    .check = check_strictly,
};

const char broker_default_yaml[] =
    "# The embedded default: one prioritized table, on ports of the loopback interface.\n"
    "tables:\n"
    "  - name: replay\n"
    "    max_size: 1000000\n"
    "    sampler: {kind: prioritized, options: {exponent: 0.6}}\n"
    "    remover: {kind: fifo}\n"
    "    limiter: {kind: min_size, min_size: 1}\n";
