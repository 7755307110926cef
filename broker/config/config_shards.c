/* Shards: the file describes one logical broker, and each of its shards takes its part of it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/select/selector.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"

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
    struct limiter_section *limiter = &table->limiter;
    table->max_size = part_of(table->max_size, shards, shard);
    table->max_bytes = part_of(table->max_bytes, shards, shard);
    limiter->min_size = items_of(limiter->min_size, shards, shard);
    limiter->size = items_of(limiter->size, shards, shard);
    limiter->min_diff = bound_of(limiter->min_diff, shards);
    limiter->max_diff = bound_of(limiter->max_diff, shards);
    if (limiter->error_buffer >= 0)
        limiter->error_buffer /= shards;
}

static void divide(struct broker_config *config, uint32_t shards)
{
    uint32_t shard = (uint32_t)config->shard;
    int64_t *const parts[] = {
        &config->memory_limit,       &config->ingest_budget,
        &config->journal_max,        &config->storage_memory,
        &config->storage_disk,       &config->quota.granted_bytes,
        &config->quota.unread_bytes, &config->quota.inserts_per_second,
    };
    struct table_config *tables = config->tables.data;
    for (uint32_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i] = part_of(*parts[i], shards, shard);
    for (uint32_t i = 0; i < config->tables.count; i++)
        divide_table(&tables[i], shards, shard);
}

/* ---- endpoints and folders ---- */

/* Replaces a string of the configuration. */
static rp_status set(char **at, const char *text, rp_error *err)
{
    char *copy = strdup(text);
    if (!copy)
        return err_set(err, RP_NO_MEMORY, "no memory for the configuration of a shard");
    free(*at);
    *at = copy;
    return RP_OK;
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
    return set(address, moved, err);
}

static rp_status move_endpoint(char **endpoint, int64_t shard, rp_error *err)
{
    char moved[ENDPOINT_BYTES];
    if (strncmp(*endpoint, "tcp://", 6) == 0)
        return move_port(endpoint, PORTS_PER_SHARD * shard, err);
    if (shard == 0)
        return RP_OK;
    snprintf(moved, sizeof moved, "%s-%lld", *endpoint, (long long)shard);
    return set(endpoint, moved, err);
}

/* Shards of one machine: each listens at the ports after those of the shard before it. */
static rp_status move_all(struct broker_config *config, rp_error *err)
{
    RP_TRY(move_endpoint(&config->service, config->shard, err));
    RP_TRY(move_endpoint(&config->ingest, config->shard, err));
    RP_TRY(move_endpoint(&config->events, config->shard, err));
    return move_port(&config->http, config->shard, err);
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
static rp_status bind_listed(struct broker_config *config, rp_error *err)
{
    char service[ENDPOINT_BYTES], beside[ENDPOINT_BYTES];
    to_bind(config_shard_endpoint(config, config->shard > 0 ? (uint32_t)config->shard : 0), service);
    bool tcp = strncmp(service, "tcp://", 6) == 0;
    snprintf(beside, sizeof beside, "%.*s:0", tcp ? (int)(strrchr(service, ':') - service) : 15,
             tcp ? service : "tcp://127.0.0.1");
    if (is_default("service", config->service))
        RP_TRY(set(&config->service, service, err));
    if (is_default("ingest", config->ingest))
        RP_TRY(set(&config->ingest, beside, err));
    return is_default("events", config->events) ? set(&config->events, beside, err) : RP_OK;
}

static rp_status divide_folders(struct broker_config *config, rp_error *err)
{
    char **const folders[] = {&config->journal_dir, &config->checkpoint_dir, &config->storage_dir};
    for (uint32_t i = 0; i < 3; i++) {
        char own[4096];
        if (!(*folders[i])[0])
            continue;
        if ((size_t)snprintf(own, sizeof own, "%s/shard-%lld", *folders[i], (long long)config->shard) >= sizeof own)
            return err_set(err, RP_INVALID_ARGUMENT, "the path of the folder %s is too long", *folders[i]);
        RP_TRY(set(folders[i], own, err));
    }
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

/* Hashes tables and number of shards. 0: no memory. */
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
    if (!out)
        return 0;
    schema_print(&tables, config, out);
    bool ok = fclose(out) == 0;
    uint64_t hash = ok ? hash_lines(text, UINT64_C(0xCBF29CE484222325) ^ config_shards(config)) : 0;
    free(text);
    return ok && hash == 0 ? 1 : hash;
}

rp_status config_become_shard(struct broker_config *config, rp_error *err)
{
    uint32_t shards = config_shards(config);
    bool listed = config_shard_endpoint(config, 0) != NULL;
    if (shards == 1)
        return listed ? bind_listed(config, err) : RP_OK;
    if (config->shard < 0)
        return err_set(
            err, RP_INVALID_ARGUMENT,
            "there are %u shards, and this broker does not know which it is: write shard: 0 to %u, or --set shard=...",
            shards, shards - 1);
    config->settings = hash_settings(config);
    if (!config->settings)
        return err_set(err, RP_NO_MEMORY, "no memory for the configuration of a shard");
    divide(config, shards);
    RP_TRY(listed ? bind_listed(config, err) : move_all(config, err));
    return divide_folders(config, err);
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
        config_check_endpoint(at, own ? own : "", report);
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
static int64_t port_of(const struct address *self)
{
    const char *colon = strncmp(self->value, "ipc://", 6) == 0 ? NULL : strrchr(self->value, ':');
    int64_t port = 0;
    return colon && schema_parse_int(colon + 1, &port) && port > 0 ? port : 0;
}

/* The ports of one key may not meet those of another, whichever shards they belong to. */
static void check_ports(const struct address *own, const struct address *other, uint32_t shards,
                        struct schema_report *report)
{
    int64_t port = port_of(own), taken = port_of(other);
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
    const struct address rows[] = {{"service", config->service, PORTS_PER_SHARD},
                                   {"ingest", config->ingest, PORTS_PER_SHARD},
                                   {"events", config->events, PORTS_PER_SHARD},
                                   {"http", config->http ? config->http : "", 1}};
    for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strncmp(rows[i].value, "inproc://", 9) == 0)
            schema_problem(report, rows[i].key,
                           "'%s' is reached from inside one process, and each shard is a process: use tcp or ipc",
                           rows[i].value);
        if (port_of(&rows[i]) + rows[i].step * (shards - 1) > MOST_PORT)
            schema_problem(report, rows[i].key, "'%s' leaves no ports for %u shards: use a smaller one, or port 0",
                           rows[i].value, shards);
        for (uint32_t k = 0; k < i; k++)
            check_ports(&rows[i], &rows[k], shards, report);
    }
}

/* The room that limiter_init demands of a part, in the numbers of the whole. False: it is missing, and reported. */
static bool check_room(const struct limiter_section *limiter, uint32_t shards, const char *at,
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

static void check_limiter(const struct table_config *table, uint32_t shards, const char *path,
                          struct schema_report *report)
{
    struct table_config part = *table;
    struct limiter limiter;
    rp_error err = {0};
    char at[64];
    snprintf(at, sizeof at, "%s.limiter", path);
    if (table->limiter.kind == LIMITER_STACK)
        schema_problem(report, at, "a stack over shards has no meaning: nobody knows the newest item of all shards");
    double size = table->limiter.size > 0 ? table->limiter.size : (double)table->max_size;
    if (table->limiter.kind == LIMITER_QUEUE && size < shards)
        schema_problem(report, at, "a queue of %.0f items cannot be divided among %u shards", size, shards);
    else if (table->max_size < shards || (table->max_bytes > 0 && table->max_bytes < shards))
        schema_problem(report, path, "%s of %lld cannot be divided among %u shards: write more, or fewer shards",
                       table->max_size < shards ? "max_size" : "max_bytes",
                       (long long)(table->max_size < shards ? table->max_size : table->max_bytes), shards);
    if (!check_room(&table->limiter, shards, at, report))
        return;
    divide_table(&part, shards, shards - 1); /* the smallest part */
    struct limiter_config config = config_limiter(&part.limiter);
    config.part = true;
    if (config.size == 0)
        config.size = (double)part.max_size;
    if (limiter_init(&limiter, &config, &err) != RP_OK)
        schema_problem(report, at, "each of %u shards has its part of the limiter, and there: %s", shards, err.text);
}

bool config_sampler_divides(const struct table_config *table, const rp_selector_ops *sampler)
{
    return sampler->mass || (sampler == &selector_fifo && table->limiter.kind == LIMITER_QUEUE);
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
        check_limiter(&tables[i], shards, path, report);
    }
}
