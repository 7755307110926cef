/* Checks of the broker's configuration that concern several keys at once. */
#include <stdio.h>
#include <string.h>

#include "broker/config/config.h"
#include "broker/extension/extension.h"
#include "broker/select/selector.h"
#include "proto/base/dtype.h"
#include "proto/base/endpoint.h"
#include "proto/base/utf8.h"

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
                       "min_size %.0f can never be reached: max_size is %lld, so every sample would wait forever",
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
    schema_problem(report, path, "no %s '%s'%s%s%s", what, kind ? kind : "", near ? " (did you mean '" : "",
                   near ? near : "", near ? "'?)" : "");
}

/* plugins: an unknown kind may come from a plug-in. It is checked when the tables are created. */
static void check_selector(const struct selector_config *selector, const char *path, bool plugins,
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
    const struct extension_config *extension = (const struct extension_config *)table->extensions.data + i;
    const rp_extension_ops *ops = extension->kind ? extension_builtin(extension->kind) : NULL;
    char at[96];
    snprintf(at, sizeof at, "%s.extensions[%u]", path, i);
    if (!ops) {
        if (config->plugins.count == 0)
            report_unknown("extension", extension->kind, extension_builtin_name, at, report);
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
    if (table->metadata && !utf8_valid(table->metadata, strlen(table->metadata))) {
        snprintf(at, sizeof at, "%s.metadata", path);
        schema_problem(report, at, "must be UTF-8; encode other bytes, for example in base64");
    }
    check_limiter(table, path, report);
    check_signature(table, path, report);
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

void config_check_endpoint(const char *key, const char *endpoint, struct schema_report *report)
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
    if (load && strcmp(load, "newest") != 0 && strcmp(load, "salvage") != 0 && strcmp(load, "none") != 0 &&
        (!schema_parse_int(load, &number) || number < 1))
        schema_problem(report, "checkpoint.load", "'%s' is neither newest, salvage, none nor a number", load);
}

void config_check(const void *root, struct schema_report *report)
{
    const struct broker_config *config = root;
    int64_t budget = config_ingest_budget(config);
    if (budget > config->memory_limit / 2)
        schema_problem(report, "ingest_budget", "must be at most half of memory_limit");
    config_check_endpoint("service", config->service, report);
    config_check_endpoint("ingest", config->ingest, report);
    config_check_endpoint("events", config->events, report);
    if (config->advertise[0] && !endpoint_is_host(config->advertise))
        schema_problem(
            report, "advertise",
            "'%s' is not a name or an address: write it without tcp:// and port, an IPv6 address in brackets: "
            "'[fd00::1]'",
            config->advertise);
    check_http(config->http, report);
    check_disk(config, report);
    if (config->expiry_ns < 2 * config->heartbeat_ns)
        schema_problem(report, "session.expiry", "must be at least twice session.heartbeat");
    config_check_shards(config, report); /* first: with shards a limiter needs more room */
    for (uint32_t i = 0; i < config->tables.count; i++)
        check_table(config, i, report);
}
