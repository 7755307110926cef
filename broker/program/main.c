/* replay-broker: reads the configuration, starts a broker, and runs it until SIGTERM or SIGINT. The room broker/program puts a broker
 * together with what only the program has: a command line, signals, and an HTTP server with metrics (web.c) and the page
 * (agent/view). Nothing stands above it. */
#include <czmq.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/view/page.h"
#include "broker/broker.h"
#include "broker/program/web.h"
#include "broker/shards.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "proto/config/cli.h"
#include "proto/config/schema.h"
#include "proto/keys/keys.h"

/* ---- the configuration: the file or the embedded one, with what the command line sets instead ---- */

struct settings {
    const char *config;  /* NULL: the embedded one */
    const char *section; /* of the file; NULL: all of it */
    int64_t shards;      /* of the command line, which is among the overrides, too; 0: not given */
    struct words overrides;
    bool check; /* strictly: also what only matters while it runs */
};

static struct schema_source source_of(const struct settings *self)
{
    return (struct schema_source){.file = self->config,
                                  .name = "(embedded)",
                                  .text = broker_default_yaml,
                                  .section = self->section,
                                  .overrides = (const char *const *)self->overrides.list};
}

/* The file of a whole run has the broker's keys in a section. */
static void hint_section(const struct settings *self, const struct schema_report *report)
{
    if (self->config && !self->section && schema_is_written(report, "broker") && !schema_is_written(report, "tables"))
        fprintf(stderr, "replay-broker: %s is the file of a whole run: add --section broker\n", self->config);
    for (uint32_t i = 0; i < self->overrides.count && !self->section; i++)
        if (strncmp(self->overrides.list[i], "broker.", 7) == 0)
            fprintf(stderr, "replay-broker: without --section a key has no 'broker.' before it: --set %s\n",
                    self->overrides.list[i] + 7);
}

/* True if --shards would replace a list of brokers that run by themselves. */
static bool replaces_list(const struct settings *self)
{
    struct schema_source source = source_of(self);
    struct broker_config config = {0};
    source.overrides = NULL;
    if (!self->shards)
        return false;
    struct schema_report *report = schema_report_new(); /* mistakes are reported later, with the overrides */
    bool ok = schema_read(&broker_schema, &source, &config, report);
    schema_report_destroy(&report);
    if (!ok)
        return false;
    uint32_t n = config_shards(&config);
    bool listed = config_shard_endpoint(&config, 0) != NULL;
    schema_free(&broker_schema, &config);
    if (listed)
        cli_usage("replay-broker",
                  "--shards %d: %s lists %u shards that are brokers of their own: leave --shards out and say which of "
                  "them this is (--set shard=0), or take the list out of the file",
                  (int)self->shards, self->config, n);
    return listed;
}

/* Reads the configuration: schema_free. False: it has printed what is wrong. */
static bool settings_read(const struct settings *self, struct broker_config *config)
{
    if (replaces_list(self))
        return false;
    struct schema_report *report = schema_report_new();
    const struct schema_source source = source_of(self);
    struct schema schema = broker_schema;
    if (self->check)
        schema.check = config_check_strictly;
    bool ok = schema_read(&schema, &source, config, report);
    if (!ok) {
        fputs(schema_report_text(report), stderr);
        fprintf(stderr, "replay-broker: %u mistake%s in the configuration; nothing was started\n",
                schema_report_count(report), schema_report_count(report) == 1 ? "" : "s");
        hint_section(self, report);
    }
    schema_report_destroy(&report);
    return ok;
}

/* Prints that there are no mistakes, and what was read. */
static void settings_print(const struct settings *self, const struct broker_config *config)
{
    uint32_t tables = config->tables.count, shards = config_shards(config);
    printf("%s: no mistakes; %u table%s", self->config ? self->config : "(embedded)", tables, tables == 1 ? "" : "s");
    if (shards > 1)
        printf(", %u shards", shards);
    puts(config->shards.count == 0 ? ", 1 shard (auto is measured by replay-launch only)" : "");
}

/* ---- the HTTP server. The page reads what the broker shows from the snapshot of this process; what concerns single items, other
 * shards or a change it asks as a client. With keys it has a key that is made at each start, is in no file, and may do everything;
 * whoever asks over HTTP needs the token for that ---- */

/* All but the last three is set before their threads start, and never changed after that. */
struct site {
    struct broker *broker; /* to stop it; nothing else of it is touched */
    char *service;         /* endpoint of the broker as this process connects to it */
    const char *keys;      /* folder; NULL: without keys */
    struct key key;        /* of the page */
    struct page *page;
    _Atomic(struct web *) web; /* the page may ask before it is there */
    atomic_bool stopping;
};

/* Adds the public half of a key in the folder, if it is there. */
static void add_broker(const struct site *self, const char *name, struct key *out)
{
    char path[KEY_PATH];
    struct key broker = {0};
    if (key_path(self->keys, name, path, NULL) == RP_OK && key_read(path, &broker, NULL) == RP_OK)
        key_add_broker(out, broker.public_key);
    key_wipe(&broker);
}

/* The broker's key may have been rotated since the last time. */
static void find_broker(void *ctx, struct page_door *out)
{
    const struct site *self = ctx;
    snprintf(out->service, sizeof out->service, "%s", self->service);
    out->has_key = self->keys != NULL;
    if (!out->has_key)
        return;
    out->key = self->key;
    add_broker(self, ALLOW_NEXT_KEY, &out->key);
    add_broker(self, ALLOW_BROKER_KEY, &out->key);
}

static rp_status stop_broker(void *ctx, bool *already, rp_error *err)
{
    struct site *self = ctx;
    (void)err;
    *already = atomic_exchange(&self->stopping, true);
    broker_stop(self->broker);
    return RP_OK;
}

static rp_status show(void *ctx, bool sessions, rp_info **info, rp_info **waits, rp_error *err)
{
    struct site *self = ctx;
    struct web *web = atomic_load(&self->web);
    return web ? web_show(web, sessions, info, waits, err) : err_set(err, RP_UNAVAILABLE, "the broker starts");
}

static rp_status open_page(struct site *self, const struct key *key, rp_error *err)
{
    const struct page_host host = {.ctx = self,
                                   .find = find_broker,
                                   .show = config_shards(self->broker->config) > 1 ? NULL : show,
                                   .what = "broker",
                                   .stop = stop_broker};
    self->service = endpoint_local(self->broker->peers.service_endpoint);
    if (self->keys) {
        if (key)
            self->key = *key;
        else
            RP_TRY(key_make(&self->key, "page", err));
        identities_trust(&self->broker->peers.identities, &self->key);
    }
    self->page = page_new(&host);
    return RP_OK;
}

static rp_status open_web(struct site *self, const struct key *key, rp_error *err)
{
    const struct broker_config *config = self->broker->config;
    self->keys = config_uses_curve(config) ? config->keys_dir : NULL;
    RP_TRY(open_page(self, key, err));
    self->web = web_start(&(struct web_options){.address = config->http,
                                                .keys = self->keys,
                                                .exchange = &self->broker->snapshots.exchange,
                                                .shard = config->shard,
                                                .further = page_part(self->page)},
                          err);
    return self->web ? RP_OK : (rp_status)err->status;
}

static void site_close(struct site **at)
{
    struct site *self = *at;
    *at = NULL;
    if (!self)
        return;
    struct web *web = atomic_load(&self->web);
    if (self->page)
        page_leave(self->page);
    if (web)
        web_stop(web);
    page_destroy(&self->page);
    web_destroy(&web);
    key_wipe(&self->key);
    free(self->service);
    free(self);
}

/* Serves what the configuration's `http` asks for; *out is NULL if it asks for nothing. The core thread does not run yet. key: of the
 * page, which is the same for all shards that one parent has started, because each of their pages asks all of them; NULL: one
 * is made. Signals are for the core thread: other threads inherit a mask that blocks all of them. */
static rp_status site_open(struct broker *broker, const struct key *key, struct site **out, rp_error *err)
{
    sigset_t all, before;
    *out = NULL;
    if (!broker->config->http[0])
        return RP_OK;
    struct site *self = need_alloc(sizeof *self);
    self->broker = broker;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rp_status status = open_web(self, key, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != RP_OK)
        site_close(&self);
    *out = self;
    return status;
}

static const char *site_url(const struct site *self)
{
    return self ? web_url(self->web) : "";
}

/* ---- the broker ---- */

static struct broker *running;

/* Ctrl-C may reach a process twice, from the terminal and from its parent: a signal counts as the second only after this time. */
#define SECOND_SIGNAL_NS NS_PER_S
static int64_t first_signal_ns;

static void on_signal(int number)
{
    if (number == SIGUSR1) {
        broker_checkpoint(running);
        return;
    }
    int64_t now = clock_ns();
    if (first_signal_ns && now - first_signal_ns >= SECOND_SIGNAL_NS)
        broker_hurry(running);
    else
        broker_stop(running);
    if (!first_signal_ns)
        first_signal_ns = now;
}

static atomic_bool ended;

/* Opens the log anew at each SIGHUP, which is blocked in all threads and taken by this one, until the broker has ended. *parent: a
 * process at whose end the kernel sends one, too, and stops the broker; 0: none. */
static void *hangup_thread(void *parent)
{
    sigset_t set;
    pthread_setname_np(pthread_self(), "signals");
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    for (int number; sigwait(&set, &number) == 0 && !atomic_load(&ended);) {
        log_reopen();
        if (shards_lost_parent(*(int64_t *)parent))
            kill(getpid(), SIGTERM);
    }
    return NULL;
}

struct options {
    struct settings settings;
    const char *endpoints_file;
    struct key page_key; /* of the pages of all shards that this process starts */
    bool has_page_key;
    int log_level;  /* -1: as the configuration says */
    int64_t parent; /* ends with this process; 0: with none */
    bool print, reference, again;
};

static void print_help(const void *target);

static int take_shards(const struct cli *cli, const struct cli_option *option, const char *argument, void *target)
{
    struct options *out = target;
    bool number = schema_parse_int(argument, &out->settings.shards) && out->settings.shards >= 1 &&
                  out->settings.shards <= CONFIG_MAX_SHARDS;
    if (!number && strcmp(argument, "auto") == 0)
        return cli_usage(cli->program,
                         "--%s auto: only replay-launch measures how many shards pay (broker.shards in the "
                         "file of a run); write a number from 1 to %d",
                         option->name, CONFIG_MAX_SHARDS);
    return number ? CLI_GO_ON
                  : cli_usage(cli->program, "--%s is '%s'; it needs a number from 1 to %d", option->name, argument,
                              CONFIG_MAX_SHARDS);
}

#define AT(field) CLI_AT(struct options, field)
static const struct cli_option rows[] = {
    {"config", 'c', "FILE", "configuration (docs/CONFIG.md; configs/ has examples)", 1, CLI_TEXT, AT(settings.config)},
    {"section", 0, "NAME", "read only this section of FILE: 'broker' in the file of a whole run", 1, CLI_TEXT,
     AT(settings.section)},
    {"set", 0, "KEY=VALUE", "override a key of FILE: tables[0].max_size=1000 (with --section: broker.tables...)", 1,
     CLI_OVERRIDE, AT(settings.overrides)},
    {"shards", 0, "N", "run N brokers that clients see as one (docs/OPERATE.md); overrides FILE", 1, CLI_TAKE,
     AT(settings.shards), .take = take_shards},
    {"endpoints-file", 0, "FILE", "write the bound endpoints to FILE, one 'name endpoint' per line", 1, CLI_TEXT,
     AT(endpoints_file)},
    {"again", 0, NULL,
     "bind the ports and ipc names that the endpoints file has from the last start, instead of free ones", 1,
     CLI_SWITCH, AT(again)},
    {"parent", 0, "PID", "stop when the process PID has ended, which has started this one", 1, CLI_WHOLE, AT(parent),
     .least = 1},
    {"check", 0, NULL, "read the configuration, report every mistake, start nothing", 1, CLI_SWITCH,
     AT(settings.check)},
    {"print-config", 0, NULL, "print the whole configuration with defaults and help as YAML", 1, CLI_SWITCH, AT(print)},
    {"print-reference", 0, NULL, "print the reference of all keys as Markdown", 1, CLI_SWITCH, AT(reference)},
    {"log-level", 0, "LEVEL", "debug, info, warn, error or off", 1, CLI_LEVEL, AT(log_level)},
    CLI_LOG_JSON(1),
    CLI_HELP_AND_VERSION(1),
};
static const struct cli cli = {.program = "replay-broker",
                               .options = rows,
                               .n = sizeof rows / sizeof rows[0],
                               .who = 1,
                               .width = 26,
                               .help = print_help};

static void print_help(const void *target)
{
    (void)target;
    puts("Usage: replay-broker [options]\n"
         "\n"
         "Keeps replay tables and parameter slots for actors and learners. Without -c it runs an embedded "
         "configuration:\n"
         "one prioritized table 'replay' at tcp://127.0.0.1:7600.\n");
    cli_print_options(&cli, 1);
    puts("\n"
         "SIGTERM and SIGINT stop it: waiting requests are cancelled, and items that are not in a table yet stay "
         "unacknowledged.\n"
         "With a folder, it writes a last checkpoint and waits for the disk; a second signal "
         "ends that.\n"
         "SIGUSR1 starts a checkpoint. SIGHUP reopens log.file after a rotation.\n"
         "Exit status: 0 stopped as asked, 1 could not run or save its state, 2 the command line or the configuration "
         "is wrong.");
}

/* Returns CLI_GO_ON, or the exit status. */
static int read_options(int argc, char **argv, struct options *out)
{
    int status = cli_read(&cli, out, argc, argv);
    if (status == CLI_GO_ON && optind < argc)
        status = cli_usage(cli.program, "unexpected argument '%s'. Did you mean -c %s?", argv[optind], argv[optind]);
    if (status == CLI_GO_ON && out->settings.shards) {
        char prefix[96], number[8];
        snprintf(prefix, sizeof prefix, "%.64s%sshards=", out->settings.section ? out->settings.section : "",
                 out->settings.section ? "." : "");
        snprintf(number, sizeof number, "%d", (int)out->settings.shards);
        status = cli_override(&cli, &out->settings.overrides, prefix, number);
    }
    return status;
}

/* On a terminal the address of the page has its token. Whoever reads a file of the output need not have it. */
static void print_endpoints(const struct broker *broker, const struct site *site)
{
    const struct peers *peers = &broker->peers;
    const char *http = site_url(site);
    printf("service %s\ningest %s\nevents %s\n", peers->told.service, peers->told.ingest, peers->told.events);
    if (http[0] && isatty(STDOUT_FILENO))
        printf("http %s?token=%s\n", http, web_token(site->web));
    else if (http[0])
        printf("http %s\n", http);
    fflush(stdout);
}

static void log_start(const struct broker *broker, const char *http)
{
    const struct peers *peers = &broker->peers;
    char shard[32] = "";
    if (broker->config->shard >= 0)
        snprintf(shard, sizeof shard, " shard=%lld", (long long)broker->config->shard);
    log_line(LEVEL_INFO, "B0001", "broker started", "version=%s tables=%u service=%s ingest=%s events=%s%s%s%s",
             rp_version(), broker->tables.n, peers->service_endpoint, peers->ingest_endpoint, peers->events_endpoint,
             http[0] ? " http=" : "", http, shard);
}

/* Tells the parent of several shards where this one is, and learns where the others are. link NULL: there is no parent. */
static rp_status join_shards(struct broker *broker, const char *http, const struct shard_link *link, rp_error *err)
{
    const struct peers *peers = &broker->peers;
    const char *own[SHARD_ENDPOINTS] = {peers->service_endpoint, peers->ingest_endpoint, peers->events_endpoint, http,
                                        peers->told.service,     peers->told.ingest,     peers->told.events};
    char *all[CONFIG_MAX_SHARDS];
    if (!link)
        return RP_OK;
    RP_TRY(shards_join(link, own, all, err));
    service_set_shards(&broker->service, all, link->n);
    return RP_OK;
}

/* Beyond such a limit libzmq drops what it cannot allocate, and nobody is told. */
static void check_address_space(const struct broker_config *config)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < (uint64_t)config->memory_limit)
        log_line(LEVEL_WARN, "B0010", "the process may have less memory than memory_limit",
                 "limit_bytes=%llu memory_limit=%lld", (unsigned long long)limit.rlim_cur,
                 (long long)config->memory_limit);
}

static int serve(const struct options *options, const struct broker_config *config, const struct shard_link *link)
{
    rp_error err = {0};
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is handled like a full disk */
    signal(SIGUSR1, SIG_IGN); /* until the broker exists */
    check_address_space(config);
    struct broker *broker = broker_new(config, clock_system(), NULL, &err);
    if (!broker) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        return 1;
    }
    running = broker;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    const char *path = options->endpoints_file;
    struct site *site = NULL;
    bool saved = true;
    rp_status started = site_open(broker, options->has_page_key ? &options->page_key : NULL, &site, &err);
    const char *url = started == RP_OK ? site_url(site) : "";
    if (started == RP_OK && path && path[0] && !link)
        started = broker_write_endpoints(broker, url, path, &err);
    if (started == RP_OK)
        started = join_shards(broker, url, link, &err);
    if (started == RP_OK) {
        log_start(broker, url);
        broker->resident.on = true;
        if (!link)
            print_endpoints(broker, site);
        saved = broker_run(broker);
    } else if (started != RP_CANCELLED) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
    }
    site_close(&site);
    signal(SIGTERM, SIG_IGN); /* the handler refers to the broker */
    signal(SIGINT, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    broker_destroy(&broker);
    if (started == RP_OK)
        log_line(LEVEL_INFO, "B0002", "broker stopped", NULL);
    return saved && (started == RP_OK || started == RP_CANCELLED) ? 0 : 1; /* cancelled: asked to end */
}

/* ctx: the options. link: in the process of a shard that a parent has started; otherwise NULL. */
static int run(void *ctx, struct broker_config *config, const struct shard_link *link)
{
    rp_error err = {0};
    pthread_t hangups;
    int64_t parent = link ? 0 : ((struct options *)ctx)->parent;
    if (log_open(config->log_file, &err) != RP_OK) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        return 1;
    }
    if (pthread_create(&hangups, NULL, hangup_thread, &parent) != 0) {
        fputs("replay-broker: no memory for a thread\n", stderr);
        return 1;
    }
    int status = serve(ctx, config, link);
    atomic_store(&ended, true);
    pthread_kill(hangups, SIGHUP);
    pthread_join(hangups, NULL);
    return status;
}

/* Each page asks all shards, so their pages have one key, which only this process and its children know. */
static int run_parent(struct options *options, struct broker_config *config, const char *path)
{
    rp_error err = {0};
    if (log_open(config->log_file, &err) != RP_OK) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        return 1;
    }
    if (config->http[0])
        options->has_page_key = key_make(&options->page_key, "page", NULL) == RP_OK;
    config_make_parts(config, config_folder(config));
    int status = shards_run(config, path, options->again, options->parent, run, options);
    key_wipe(&options->page_key);
    return status;
}

/* A broker by itself, one of several shards that were started one by one, or the parent of shards. */
static int run_all(struct options *options, struct broker_config *config)
{
    const char *path = options->endpoints_file;
    rp_error err = {0};
    rp_status status = config_check_folder(config, config_folder(config), &err);
    if (options->parent)
        prctl(PR_SET_PDEATHSIG, SIGHUP); /* at the end of a thread of the parent, too */
    if (status == RP_OK && shards_lost_parent(options->parent))
        status =
            err_set(&err, RP_INVALID_ARGUMENT, "--parent %lld: that process has not started this one, or has ended",
                    (long long)options->parent);
    if (config->shards.count == 0)
        log_line(LEVEL_INFO, "B0704", "shards is auto: this is one broker",
                 "hint=\"replay-launch measures how many pay; --shards N starts N\"");
    if (status == RP_OK && config_shards(config) > 1 && config->shard < 0 && !config_shard_endpoint(config, 0))
        return run_parent(options, config, path);
    if (status == RP_OK)
        status = config_become_shard(config, &err);
    if (status == RP_OK && options->again && path && path[0])
        shards_bind_again(config, 0, path);
    if (status == RP_OK)
        return run(options, config, NULL);
    fprintf(stderr, "replay-broker: %s\n", err.text);
    return 2;
}

static int start(struct options *options)
{
    zsys_handler_set(NULL); /* czmq must not handle signals */
    broker_memory_settings();
    struct broker_config config = {0};
    int status = 0;
    if (!settings_read(&options->settings, &config))
        return 2;
    log_set_level(options->log_level >= 0 ? (enum log_level)options->log_level : (enum log_level)config.log_level);
    if (options->print)
        schema_print(&broker_schema, &config, stdout);
    else if (options->settings.check)
        settings_print(&options->settings, &config);
    else
        status = run_all(options, &config);
    schema_free(&broker_schema, &config);
    return status;
}

int main(int argc, char **argv)
{
    struct options options = {.log_level = -1};
    sigset_t hangups;
    sigemptyset(&hangups);
    sigaddset(&hangups, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &hangups, NULL);
    int status = read_options(argc, argv, &options);
    if (status == CLI_GO_ON && options.reference) {
        schema_print_reference(&broker_schema, stdout);
        status = 0;
    }
    if (status == CLI_GO_ON)
        status = start(&options);
    words_clear(&options.settings.overrides);
    return status;
}
