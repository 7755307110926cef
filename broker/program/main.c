/* replay-broker: reads the configuration, starts a broker, and runs it until SIGTERM or SIGINT. */
#include <czmq.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/program/face.h"
#include "broker/program/reading.h"
#include "broker/shards.h"
#include "proto/config/cli.h"
#include "proto/keys/keys.h"

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
    struct clock clock = clock_system();
    int64_t now = clock_now(&clock);
    if (first_signal_ns && now - first_signal_ns >= SECOND_SIGNAL_NS)
        broker_hurry(running);
    else
        broker_stop(running);
    if (!first_signal_ns)
        first_signal_ns = now;
}

static atomic_bool ended;

/* Opens the log anew at each SIGHUP, which is blocked in all threads and taken by this one, until the broker has ended. */
static void *hangup_thread(void *unused)
{
    (void)unused;
    sigset_t set;
    pthread_setname_np(pthread_self(), "signals");
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    for (int number; sigwait(&set, &number) == 0 && !atomic_load(&ended);)
        log_reopen();
    return NULL;
}

static void block_hangups(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* Ignores signals, whose handler refers to the broker, then destroys it. */
static int stop(struct broker **broker, int status)
{
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    broker_destroy(broker);
    return status;
}

struct options {
    struct reading reading;
    const char *endpoints_file;
    struct key page_key; /* of the pages of all shards that this process starts */
    bool has_page_key;
    int log_level; /* -1: as the configuration says */
    bool print, reference, again;
};

static void print_help(const void *target);

static int take_shards(const struct cli *cli, const struct cli_option *option, const char *argument, void *target)
{
    struct options *out = target;
    bool number = schema_parse_int(argument, &out->reading.shards) && out->reading.shards >= 1 &&
                  out->reading.shards <= CONFIG_MAX_SHARDS;
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
    {"config", 'c', "FILE", "configuration (docs/CONFIG.md; configs/ has examples)", 1, CLI_TEXT, AT(reading.config)},
    {"section", 0, "NAME", "read only this section of FILE: 'broker' in the file of a whole run", 1, CLI_TEXT,
     AT(reading.section)},
    {"set", 0, "KEY=VALUE", "override a key of FILE: tables[0].max_size=1000 (with --section: broker.tables...)", 1,
     CLI_OVERRIDE, AT(reading.overrides)},
    {"shards", 0, "N", "run N brokers that clients see as one (docs/OPERATE.md); overrides FILE", 1, CLI_TAKE,
     AT(reading.shards), .take = take_shards},
    {"endpoints-file", 0, "FILE", "write the bound endpoints to FILE, one 'name endpoint' per line", 1, CLI_TEXT,
     AT(endpoints_file)},
    {"again", 0, NULL, "bind the ports that the endpoints file names from the last start, instead of free ones", 1,
     CLI_SWITCH, AT(again)},
    {"check", 0, NULL, "read the configuration, report every mistake, start nothing", 1, CLI_SWITCH, AT(reading.check)},
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
         "With checkpoint.dir or journal.dir set, it writes a last checkpoint and waits for the disk; a second signal "
         "ends that.\n"
         "SIGUSR1 starts a checkpoint. SIGHUP reopens log.file after a rotation.\n"
         "Exit status: 0 stopped as asked, 1 could not run, 2 the command line or the configuration is wrong.");
}

/* Returns CLI_GO_ON, or the exit status. */
static int read_options(int argc, char **argv, struct options *out)
{
    int status = cli_read(&cli, out, argc, argv);
    if (status == CLI_GO_ON && optind < argc)
        status = cli_usage(cli.program, "unexpected argument '%s'. Did you mean -c %s?", argv[optind], argv[optind]);
    if (status == CLI_GO_ON && out->reading.shards) {
        char prefix[96], number[8];
        snprintf(prefix, sizeof prefix, "%.64s%sshards=", out->reading.section ? out->reading.section : "",
                 out->reading.section ? "." : "");
        snprintf(number, sizeof number, "%d", (int)out->reading.shards);
        status = cli_override(&cli, &out->reading.overrides, prefix, number);
    }
    return status;
}

/* On a terminal the address of the page has its token. Whoever reads a file of the output need not have it. */
static void print_endpoints(const struct broker *broker, const struct face *face)
{
    const struct peers *peers = &broker->peers;
    const char *http = face_url(face);
    printf("service %s\ningest %s\nevents %s\n", peers->told.service, peers->told.ingest, peers->told.events);
    if (http[0] && isatty(STDOUT_FILENO))
        printf("http %s?token=%s\n", http, face_token(face));
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

/* Tells the parent of several shards where this one is, and learns where the others are. link -1: there is no parent. */
static rp_status join_shards(struct broker *broker, const char *http, int link, rp_error *err)
{
    const struct peers *peers = &broker->peers;
    uint32_t n = config_shards(broker->config);
    const char *own[SHARD_ENDPOINTS] = {peers->service_endpoint, peers->ingest_endpoint, peers->events_endpoint, http,
                                        peers->told.service,     peers->told.ingest,     peers->told.events};
    char **all = NULL;
    if (link < 0)
        return RP_OK;
    RP_TRY(shards_join(link, own, n, &all, err));
    broker_set_shards(broker, all, n);
    for (uint32_t i = 0; i < n; i++)
        free(all[i]);
    free(all);
    return RP_OK;
}

static int serve(const struct options *options, const struct broker_config *config, int link)
{
    rp_error err = {0};
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is handled like a full disk */
    signal(SIGUSR1, SIG_IGN); /* until the broker exists */
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
    struct face *face = NULL;
    rp_status started = face_open(broker, options->has_page_key ? &options->page_key : NULL, &face, &err);
    const char *url = started == RP_OK ? face_url(face) : "";
    if (started == RP_OK && path && path[0] && link < 0)
        started = broker_write_endpoints(broker, url, path, &err);
    if (started == RP_OK)
        started = join_shards(broker, url, link, &err);
    if (started == RP_OK && config->pin && config->shard >= 0 && !shards_pin((uint32_t)config->shard))
        log_line(LEVEL_WARN, "B0703", "the core thread cannot be bound to a core", "shard=%lld",
                 (long long)config->shard);
    if (started == RP_OK) {
        log_start(broker, url);
        broker->resident.on = true;
        if (link < 0)
            print_endpoints(broker, face);
        broker_run(broker);
    } else if (started != RP_CANCELLED) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
    }
    face_close(&face);
    int status = stop(&broker, started == RP_OK || started == RP_CANCELLED ? 0 : 1); /* cancelled: asked to end */
    if (started != RP_OK)
        return status;
    log_line(LEVEL_INFO, "B0002", "broker stopped", NULL);
    return status;
}

static int run(const struct options *options, const struct broker_config *config, int link)
{
    rp_error err = {0};
    pthread_t hangups;
    if (log_open(config->log_file, &err) != RP_OK) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        return 1;
    }
    if (pthread_create(&hangups, NULL, hangup_thread, NULL) != 0) {
        fputs("replay-broker: no memory for a thread\n", stderr);
        return 1;
    }
    int status = serve(options, config, link);
    atomic_store(&ended, true);
    pthread_kill(hangups, SIGHUP);
    pthread_join(hangups, NULL);
    return status;
}

/* In the process of a shard that a parent has started. */
static int run_child(void *ctx, struct broker_config *config, int link)
{
    return run(ctx, config, link);
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
    int status = shards_run(config, path, options->again, run_child, options);
    key_wipe(&options->page_key);
    return status;
}

/* A broker by itself, one of several shards that were started one by one, or the parent of shards. */
static int run_all(struct options *options, struct broker_config *config)
{
    const char *path = options->endpoints_file;
    rp_error err = {0};
    rp_status status = config_check_folder(config, config_folder(config), &err);
    if (config->shards.count == 0)
        log_line(LEVEL_INFO, "B0704", "shards is auto: this is one broker",
                 "hint=\"replay-launch measures how many pay; --shards N starts N\"");
    if (status == RP_OK && config_shards(config) > 1 && config->shard < 0 && !config_shard_endpoint(config, 0))
        return run_parent(options, config, path);
    if (status == RP_OK)
        status = config_become_shard(config, &err);
    if (status == RP_OK && options->again && path && path[0])
        status = shards_bind_again(config, 0, path, &err);
    if (status == RP_OK)
        return run(options, config, -1);
    fprintf(stderr, "replay-broker: %s\n", err.text);
    return 2;
}

static int start(struct options *options)
{
    zsys_handler_set(NULL); /* czmq must not handle signals */
    broker_memory_settings();
    struct broker_config config = {0};
    int status = 0;
    if (!reading_read(&options->reading, &config))
        return 2;
    log_set_level(options->log_level >= 0 ? (enum log_level)options->log_level : (enum log_level)config.log_level);
    if (options->print)
        schema_print(&broker_schema, &config, stdout);
    else if (options->reading.check)
        reading_print(&options->reading, &config);
    else
        status = run_all(options, &config);
    schema_free(&broker_schema, &config);
    return status;
}

int main(int argc, char **argv)
{
    struct options options = {.log_level = -1};
    block_hangups();
    int status = read_options(argc, argv, &options);
    if (status == CLI_GO_ON && options.reference) {
        schema_print_reference(&broker_schema, stdout);
        status = 0;
    }
    if (status == CLI_GO_ON)
        status = start(&options);
    cli_overrides_free(&options.reading.overrides);
    return status;
}
