/* Rows of the broker's configuration, and the checks that concern several keys at once. */
#include "broker/config/config.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "broker/select/selector.h"
#include "broker/table/extension.h"
#include "proto/base/dtype.h"

#define ROOT(member) offsetof(struct broker_config, member)
#define TABLE(member) offsetof(struct table_config, member)
#define FIELD(member) offsetof(struct field_config, member)
#define EXTENSION(member) offsetof(struct extension_config, member)

static const char *const log_levels[] = {"debug", "info", "warn", "error", "off", NULL};
static const char *const fsync_modes[] = {"never", "interval", "always", NULL};
static const char *const limiter_kinds[] = {"none", "min_size", "sample_to_insert_ratio", "queue", "stack", NULL};

static const double MAX_ITEMS = 2147483647.0;
static const double KIB = 1024.0;

static const struct schema_row rows[] = {
    {"service", SCHEMA_STRING, ROOT(service), "tcp://127.0.0.1:7600", 0, 0, NULL, 0,
     "endpoint for client requests: tcp://HOST:PORT (port 0: any free port), ipc://PATH or inproc://NAME"},
    {"ingest", SCHEMA_STRING, ROOT(ingest), "tcp://127.0.0.1:7601", 0, 0, NULL, 0,
     "endpoint to which actors push experience"},
    {"events", SCHEMA_STRING, ROOT(events), "tcp://127.0.0.1:7602", 0, 0, NULL, 0,
     "endpoint on which hints are published"},
    {"endpoints_file", SCHEMA_STRING, ROOT(endpoints_file), "", 0, 0, NULL, 0,
     "write the bound endpoints to this file"},
    {"io_threads", SCHEMA_INT, ROOT(io_threads), "1", 1, 16, NULL, 0, "threads that move bytes between sockets"},
    {"memory_limit", SCHEMA_BYTES, ROOT(memory_limit), "4GiB", 1024 * KIB, 9e18, NULL, 0,
     "maximum memory for experience, stored and in flight"},
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
     "what to start from: newest, none, or the number of a checkpoint (without the journal after it)"},
    {"storage.dir", SCHEMA_STRING, ROOT(storage_dir), "", 0, 0, NULL, 0,
     "folder for chunks that do not fit into memory; empty: the folder of the journal or of the checkpoints"},
    {"storage.memory", SCHEMA_BYTES, ROOT(storage_memory), "0", 0, 9e18, NULL, 0,
     "keep this many bytes of chunks in memory and the cold chunks on disk; 0: all in memory"},
    {"storage.disk", SCHEMA_BYTES, ROOT(storage_disk), "0", 0, 9e18, NULL, 0,
     "maximum bytes of chunks on disk; beyond it tables remove items; 0: no limit but the disk"},
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

int64_t config_ingest_budget(const struct broker_config *config)
{
    if (config->ingest_budget > 0)
        return config->ingest_budget;
    int64_t eighth = config->memory_limit / 8;
    return eighth < (INT64_C(1) << 30) ? eighth : (INT64_C(1) << 30);
}

static void check_limiter(const struct table_config *table, const char *path, struct schema_report *report)
{
    struct limiter_config config = config_limiter(&table->limiter);
    char at[64];
    snprintf(at, sizeof at, "%s.limiter", path);
    if ((config.kind == LIMITER_QUEUE || config.kind == LIMITER_STACK) && config.size == 0)
        config.size = (double)table->max_size;
    struct limiter limiter;
    rp_error err = {0};
    if (limiter_init(&limiter, &config, &err) != RP_OK)
        schema_problem(report, at, "%s", err.text);
    else if (limiter.min_size > (double)table->max_size)
        schema_problem(report, at,
                       "min_size %.0f can never be reached: max_size is %lld, so every sample would wait for ever",
                       limiter.min_size, (long long)table->max_size);
    if ((config.kind == LIMITER_QUEUE || config.kind == LIMITER_STACK) && config.size > (double)table->max_size)
        schema_problem(report, at,
                       "size %.0f is larger than max_size %lld: items would be removed before they are read",
                       config.size, (long long)table->max_size);
}

static void check_signature(const struct table_config *table, const char *path, struct schema_report *report)
{
    const struct field_config *fields = table->signature.data;
    for (uint32_t i = 0; i < table->signature.count; i++) {
        char at[96];
        snprintf(at, sizeof at, "%s.signature[%u]", path, i);
        if (fields[i].dtype && dtype_by_name(fields[i].dtype) < 0)
            schema_problem(report, at,
                           "no dtype '%s': use one of bool, int8 ... uint64, float16, bfloat16, float32, "
                           "float64, complex64, complex128",
                           fields[i].dtype);
        const int64_t *shape = fields[i].shape.data;
        for (uint32_t d = 0; d < fields[i].shape.count; d++)
            if (shape[d] < 0 || shape[d] > UINT32_MAX || (shape[d] == 0 && d > 0))
                schema_problem(report, at, "dimension %u of the shape is %lld: it must be positive%s", d,
                               (long long)shape[d], d == 0 ? ", or 0 for any number of steps" : "");
    }
}

static void check_selector(const struct selector_config *selector, const char *path, bool plugins,
                           struct schema_report *report)
{
    const rp_selector_ops *ops = selector->kind ? selector_builtin(selector->kind) : NULL;
    if (!ops) {
        if (plugins)
            return; /* may come from a plug-in: checked when tables are made */
        const char *names[16];
        uint32_t n = 0;
        while (n < 16 && selector_builtin_name(n)) {
            names[n] = selector_builtin_name(n);
            n++;
        }
        const char *near = selector->kind ? schema_nearest(selector->kind, names, n) : NULL;
        schema_problem(report, path, "no selector '%s'%s%s%s", selector->kind ? selector->kind : "",
                       near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
        return;
    }
    rp_error err = {0};
    void *trial = ops->create(selector->options.data, selector->options.count, 1, 1, &err);
    if (!trial)
        schema_problem(report, path, "%s", err.text);
    else
        ops->destroy(trial);
}

static bool no_view(void *table, uint32_t slot, rp_item_view *out)
{
    (void)table, (void)slot, (void)out;
    return false;
}

static bool no_priority(void *table, uint32_t slot, double priority)
{
    (void)table, (void)slot, (void)priority;
    return false;
}

static bool no_copy(void *table, uint32_t slot, const char *other, double priority)
{
    (void)table, (void)slot, (void)other, (void)priority;
    return false;
}

static void check_copy_target(const struct broker_config *config, const struct table_config *table,
                              const struct extension_config *extension, const char *path, struct schema_report *report)
{
    const rp_option *options = extension->options.data;
    const struct table_config *tables = config->tables.data;
    const char *target = extension->options.count == 1 ? options[0].value : NULL;
    if (!target || strcmp(extension->kind, "insert_on_sample") != 0)
        return;
    for (uint32_t i = 0; i < config->tables.count; i++)
        if (tables[i].name && strcmp(tables[i].name, target) == 0 && &tables[i] != table)
            return;
    schema_problem(report, path, "insert_on_sample needs another table to insert into; '%s' is not one", target);
}

static void check_extension(const struct broker_config *config, const struct table_config *table, uint32_t i,
                            const char *path, struct schema_report *report)
{
    static const char *const names[] = {"statistics", "priority_diffusion", "insert_on_sample"};
    const struct extension_config *extension = (const struct extension_config *)table->extensions.data + i;
    const rp_extension_ops *ops = extension->kind ? extension_builtin(extension->kind) : NULL;
    char at[96];
    snprintf(at, sizeof at, "%s.extensions[%u]", path, i);
    if (!ops) {
        const char *near = extension->kind ? schema_nearest(extension->kind, names, 3) : NULL;
        if (config->plugins.count == 0) /* otherwise it may come from a plug-in: checked when tables are made */
            schema_problem(report, at, "no extension '%s'%s%s%s", extension->kind ? extension->kind : "",
                           near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
        return;
    }
    const rp_extension_host host = {NULL, no_view, no_priority, no_copy};
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
    check_limiter(table, path, report);
    check_signature(table, path, report);
    snprintf(at, sizeof at, "%s.sampler", path);
    check_selector(&table->sampler, at, config->plugins.count > 0, report);
    snprintf(at, sizeof at, "%s.remover", path);
    check_selector(&table->remover, at, config->plugins.count > 0, report);
    for (uint32_t e = 0; e < table->extensions.count; e++)
        check_extension(config, table, e, path, report);
}

/* The port of tcp://HOST:PORT, or "" if there is none; NULL: not of that form. */
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

static void check_disk(const struct broker_config *config, struct schema_report *report)
{
    const char *folder = config_folder(config);
    struct {
        const char *key, *value;
    } folders[] = {{"journal.dir", config->journal_dir},
                   {"checkpoint.dir", config->checkpoint_dir},
                   {"storage.dir", config->storage_dir}};
    for (uint32_t i = 0; folder && i < 3; i++)
        if (folders[i].value && folders[i].value[0] && strcmp(folders[i].value, folder) != 0)
            schema_problem(
                report, folders[i].key,
                "'%s' is another folder than '%s': journal, checkpoints and spilled chunks share their files",
                folders[i].value, folder);
    if (config->storage_memory && !folder)
        schema_problem(report, "storage.memory", "cold chunks need a folder: set storage.dir");
    if (config->storage_memory > config->memory_limit)
        schema_problem(report, "storage.memory", "must be at most memory_limit");
    const char *load = config->checkpoint_load;
    int64_t number;
    if (load && strcmp(load, "newest") != 0 && strcmp(load, "none") != 0 &&
        (!schema_parse_int(load, &number) || number < 1))
        schema_problem(report, "checkpoint.load", "'%s' is neither newest, none nor a number", load);
}

static void check(const void *root, struct schema_report *report)
{
    const struct broker_config *config = root;
    int64_t budget = config_ingest_budget(config);
    if (budget > config->memory_limit / 2)
        schema_problem(report, "ingest_budget", "must be at most half of memory_limit");
    check_endpoint("service", config->service, report);
    check_endpoint("ingest", config->ingest, report);
    check_endpoint("events", config->events, report);
    check_disk(config, report);
    if (config->expiry_ns < 2 * config->heartbeat_ns)
        schema_problem(report, "session.expiry", "must be at least twice session.heartbeat");
    for (uint32_t i = 0; i < config->tables.count; i++)
        check_table(config, i, report);
}

/* What Reverb, Acme and others call it. */
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
    .check = check,
};

static void check_strictly(const void *root, struct schema_report *report)
{
    check(root, report);
    config_check_memory(root, NULL, "", report);
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
