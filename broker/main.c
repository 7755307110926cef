/* replay-broker: reads the configuration, starts a broker, and runs it until SIGTERM or SIGINT. */
#include <czmq.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/broker.h"
#include "broker/checkpoint/checkpoint.h"

#define MAX_OVERRIDES 64

static struct broker *running;

/* Ctrl-C may reach a process twice, from the terminal and from whoever started it: only a later one is a second. */
#define SECOND_SIGNAL_NS NS_PER_S
static int64_t first_signal_ns;

static void on_signal(int number)
{
    if (number == SIGUSR1) {
        checkpoint_signal(running);
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

/* SIGHUP is blocked in all threads but taken by this one, at any time: a log that is rotated ends nothing. */
static void *mind_hangups(void *unused)
{
    (void)unused;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    for (int number, state; sigwait(&set, &number) == 0;) {
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        log_reopen();
        pthread_setcancelstate(state, &state);
    }
    return NULL;
}

static void block_hangups(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* From here on signals do nothing: the handler's broker is about to go. */
static int stop(struct broker **broker, int status)
{
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    broker_destroy(broker);
    return status;
}

static const char usage[] =
    "Usage: replay-broker [options]\n"
    "\n"
    "Keeps replay tables and parameter slots for actors and learners. Without -c it runs an embedded configuration:\n"
    "one prioritized table 'replay' at tcp://127.0.0.1:7600.\n"
    "\n"
    "  -c, --config FILE          configuration (docs/CONFIG.md; configs/ has examples)\n"
    "      --section NAME         read only this section of FILE: 'broker' in the file of a whole run\n"
    "      --set KEY=VALUE        instead of what FILE says: tables[0].max_size=1000 (with --section: "
    "broker.tables...)\n"
    "      --endpoints-file FILE  write the endpoints that were bound to FILE, one 'name endpoint' a line\n"
    "      --check                read the configuration, report every mistake, start nothing\n"
    "      --print-config         print the whole configuration with defaults and help as YAML\n"
    "      --print-reference      print the reference of all keys as Markdown\n"
    "      --log-level LEVEL      debug, info, warn, error or off\n"
    "  -h, --help                 this text\n"
    "      --version              the version\n"
    "\n"
    "SIGTERM and SIGINT stop it: waiting clients are told, and nothing is acknowledged that is not in a table. With\n"
    "checkpoint.dir or journal.dir set, it makes a last checkpoint and waits for the disk; a second signal ends that.\n"
    "SIGUSR1 makes a checkpoint. SIGHUP opens log.file anew, and ends nothing.\n"
    "Exit status: 0 stopped as asked, 1 could not run, 2 the command line or the configuration is wrong.\n";

struct options {
    const char *config, *section, *endpoints_file, *log_level;
    const char *overrides[MAX_OVERRIDES + 1];
    uint32_t n_overrides;
    bool check, print, reference;
};

/* -1: go on; otherwise the exit status. */
static int read_options(int argc, char **argv, struct options *out)
{
    enum { ENDPOINTS = 256, SECTION, SET, CHECK, PRINT, REFERENCE, LEVEL, VERSION };
    static const struct option names[] = {{"config", required_argument, NULL, 'c'},
                                          {"section", required_argument, NULL, SECTION},
                                          {"set", required_argument, NULL, SET},
                                          {"endpoints-file", required_argument, NULL, ENDPOINTS},
                                          {"check", no_argument, NULL, CHECK},
                                          {"print-config", no_argument, NULL, PRINT},
                                          {"print-reference", no_argument, NULL, REFERENCE},
                                          {"log-level", required_argument, NULL, LEVEL},
                                          {"help", no_argument, NULL, 'h'},
                                          {"version", no_argument, NULL, VERSION},
                                          {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "c:h", names, NULL)) != -1;) {
        switch (option) {
        case 'c':
            out->config = optarg;
            break;
        case SECTION:
            out->section = optarg;
            break;
        case SET:
            if (out->n_overrides == MAX_OVERRIDES) {
                fprintf(stderr, "replay-broker: more than %d times --set\n", MAX_OVERRIDES);
                return 2;
            }
            out->overrides[out->n_overrides++] = optarg;
            break;
        case ENDPOINTS:
            out->endpoints_file = optarg;
            break;
        case CHECK:
            out->check = true;
            break;
        case PRINT:
            out->print = true;
            break;
        case REFERENCE:
            out->reference = true;
            break;
        case LEVEL:
            out->log_level = optarg;
            break;
        case VERSION:
            printf("replay-broker %s\n", rp_version());
            return 0;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            fputs("Try 'replay-broker --help'.\n", stderr);
            return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "replay-broker: unexpected argument '%s'. Did you mean -c %s?\n", argv[optind], argv[optind]);
        return 2;
    }
    if (out->log_level && log_level_by_name(out->log_level) < 0) {
        fprintf(stderr, "replay-broker: --log-level %s: use debug, info, warn, error or off\n", out->log_level);
        return 2;
    }
    return -1;
}

static bool read_config(const struct options *options, struct broker_config *config)
{
    struct schema_report *report = schema_report_new();
    const struct schema_source source = {.file = options->config,
                                         .name = "(embedded)",
                                         .text = broker_default_yaml,
                                         .section = options->section,
                                         .overrides = options->overrides};
    bool ok = report && schema_read(options->check ? &broker_schema_strict : &broker_schema, &source, config, report);
    if (!ok && report) {
        fputs(schema_report_text(report), stderr);
        fprintf(stderr, "replay-broker: %u mistake%s in the configuration; nothing was started\n",
                schema_report_count(report), schema_report_count(report) == 1 ? "" : "s");
    }
    schema_report_destroy(&report);
    return ok;
}

static int serve(const struct options *options, const struct broker_config *config)
{
    rp_error err = {0};
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is like a full disk */
    signal(SIGUSR1, SIG_IGN); /* until there is something to keep */
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
    const char *path = options->endpoints_file ? options->endpoints_file : config->endpoints_file;
    if (path && path[0] && broker_write_endpoints(broker, path, &err) != RP_OK) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        return stop(&broker, 1);
    }
    printf("service %s\ningest %s\nevents %s\n", broker->peers.service_endpoint, broker->peers.ingest_endpoint,
           broker->peers.events_endpoint);
    fflush(stdout);
    log_line(LEVEL_INFO, "B0001", "broker started", "version=%s tables=%u service=%s ingest=%s events=%s", rp_version(),
             broker->tables.n, broker->peers.service_endpoint, broker->peers.ingest_endpoint,
             broker->peers.events_endpoint);
    broker_run(broker);
    int status = stop(&broker, 0);
    log_line(LEVEL_INFO, "B0002", "broker stopped", NULL);
    return status;
}

static int run(const struct options *options, const struct broker_config *config)
{
    rp_error err = {0};
    pthread_t hangups;
    if (log_open(config->log_file, &err) != RP_OK) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        return 1;
    }
    if (pthread_create(&hangups, NULL, mind_hangups, NULL) != 0) {
        fputs("replay-broker: no memory for a thread\n", stderr);
        return 1;
    }
    int status = serve(options, config);
    pthread_cancel(hangups);
    pthread_join(hangups, NULL);
    return status;
}

int main(int argc, char **argv)
{
    struct options options = {0};
    block_hangups();
    int status = read_options(argc, argv, &options);
    if (status >= 0)
        return status;
    if (options.reference) {
        schema_print_reference(&broker_schema, stdout);
        return 0;
    }
    zsys_handler_set(NULL); /* signals are ours */
    broker_memory_settings();
    struct broker_config config = {0};
    if (!read_config(&options, &config))
        return 2;
    log_set_level(options.log_level ? (enum log_level)log_level_by_name(options.log_level)
                                    : (enum log_level)config.log_level);
    if (options.print)
        schema_print(&broker_schema, &config, stdout);
    else if (options.check)
        printf("%s: no mistakes; %u tables\n", options.config ? options.config : "(embedded)", config.tables.count);
    else
        status = run(&options, &config);
    schema_free(&broker_schema, &config);
    return status < 0 ? 0 : status;
}
