/* The command line of replay-ctl: options, commands, help, exit codes. */
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl/ctl.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/config/schema.h"

static const struct ctl_command commands[] = {
    {"info", "[TABLE]", "server, tables, slots and counters",
     "With a table's name, only that table, in full: limiter, rates, ages, and what inserts and samples would wait "
     "for.",
     0, 0, 1, ctl_info},
    {"why", "", "who waits, for what, and how much is missing",
     "One line for each writer, sampler or learner that waits inside the broker. Prints 'nothing waits' if there is "
     "none.",
     0, 0, 0, ctl_why},
    {"top", "[--interval 1s] [--count N]", "a view that refreshes itself",
     "Keys: q quits, space refreshes at once. When the output is not a terminal, or with --json, it is printed again "
     "and\n"
     "again instead (--count N times).",
     CTL_INTERVAL | CTL_COUNT, 0, 0, ctl_top},
    {"items", "TABLE [--limit N]", "the items of a table, without their data",
     "Prints the first N items (20 unless told otherwise; 0 for all).", CTL_LIMIT, 1, 1, ctl_items},
    {"item", "KEY [--table T] [--values N]", "one item: metadata and decoded values",
     "KEY is decimal, or hexadecimal with 0x. Without --table, all tables are searched. At most N values of each field "
     "are\n"
     "printed (12 unless told otherwise; with --json 1000).",
     CTL_TABLE | CTL_VALUES, 1, 1, ctl_item},
    {"limiter", "TABLE [KEY=VALUE ...]", "show or change a table's rate limiter",
     "Keys: samples_per_insert, min_size, min_diff, max_diff, error_buffer (sets both bounds around min_size *\n"
     "samples_per_insert). All changes are made at once, or none.",
     0, 1, 16, ctl_limiter},
    {"checkpoint", "[ls|verify|show|export DIR ...]", "make a checkpoint; or look at those in a folder",
     "  checkpoint                      make one now, and wait until it is on disk (--timeout: give up waiting)\n"
     "  checkpoint ls DIR               the checkpoints and segments of a folder\n"
     "  checkpoint verify DIR           read every byte of every file, and say what is damaged; exit status 1 if so\n"
     "  checkpoint show DIR [N]         what a broker would start with: newest state with the journal, or checkpoint "
     "N\n"
     "  checkpoint export DIR [N] --table T [--limit N] [--values N] [--save FILE]\n"
     "                                  items of a table in the order of insertion, with decoded values, a JSON object "
     "a line\n"
     "All but the first work on the files alone, whether a broker runs or not, and change nothing.",
     CTL_FILES | CTL_TABLE | CTL_LIMIT | CTL_VALUES | CTL_SAVE, 0, 3, ctl_checkpoint},
    {"delete", "TABLE KEY ...", "remove single items of a table",
     "KEY is decimal, or hexadecimal with 0x, as 'items' shows it. Keys that are not in the table are counted, and the "
     "exit\nstatus is 1 if there were any.",
     0, 2, CTL_MAX_KEYS + 1, ctl_delete},
    {"reset", "TABLE", "remove all items of a table and zero its limiter", "", 0, 1, 1, ctl_reset},
    {"params", "[NAME [--save FILE]]", "parameter slots; save one to a file", "FILE may be - for the standard output.",
     CTL_SAVE, 0, 1, ctl_params},
    {"counters", "", "named counters", "", 0, 0, 0, ctl_counters},
    {"sessions", "", "writers: what they sent, what waits, how long they are silent", "", 0, 0, 0, ctl_sessions},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* ---- results ---- */

int ctl_fail(const struct ctl *ctl, const rp_error *err)
{
    char clean[sizeof err->text];
    bool silent = err->status == RP_UNAVAILABLE || err->status == RP_DEADLINE_EXCEEDED;
    if (ctl->json) {
        struct json json = {0};
        json_open(&json, '{');
        json_key(&json, "error");
        json_open(&json, '{');
        json_key(&json, "status");
        json_string(&json, rp_status_name(err->status));
        json_key(&json, "text");
        json_string(&json, err->text);
        json_close(&json, '}');
        json_close(&json, '}');
        ctl_print_text(&json);
    } else {
        fprintf(stderr, "replay-ctl: %s\n", format_clean(clean, sizeof clean, err->text));
    }
    return silent ? CTL_SILENT : CTL_REFUSED;
}

int ctl_usage(const char *format, ...)
{
    va_list args;
    fputs("replay-ctl: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs("\nTry 'replay-ctl --help'.\n", stderr);
    return CTL_USAGE;
}

int ctl_print_text(struct json *json)
{
    char *text = json_take(json);
    int rc = text && puts(text) >= 0 && fflush(stdout) == 0 ? CTL_OK : CTL_REFUSED;
    free(text);
    return rc;
}

int ctl_print_json(const ProtobufCMessage *message)
{
    struct json json = {0};
    json_message(&json, message);
    return ctl_print_text(&json);
}

/* ---- help ---- */

static void print_help(void)
{
    printf("replay-ctl: look at and operate a running replay-broker\n\n"
           "usage: replay-ctl [options] COMMAND [arguments]\n\n"
           "commands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-10s %-31s %s\n", commands[i].name, commands[i].arguments, commands[i].summary);
    printf("\noptions:\n"
           "  -e, --endpoint ENDPOINT     service endpoint of the broker (or set REPLAY_ENDPOINT; otherwise\n"
           "                              " ENDPOINT_DEFAULT ")\n"
           "      --endpoints-file FILE   read it from the file that replay-broker --endpoints-file wrote\n"
           "      --json                  print JSON, one object on a line\n"
           "      --timeout TIME          how long to wait for the broker: 500ms, 3s (default), 1m\n"
           "  -h, --help                  this text; after a command, about that command\n"
           "      --version\n\n"
           "exit status: 0 success, 1 the broker refused (it says why), 2 wrong usage, 3 no broker answers\n");
}

static void print_command_help(const struct ctl_command *command)
{
    printf("usage: replay-ctl [options] %s%s%s\n\n%c%s.\n", command->name, command->arguments[0] ? " " : "",
           command->arguments, command->summary[0] - ('a' - 'A'), command->summary + 1);
    if (command->help[0])
        printf("%s\n", command->help);
    printf("\nOptions for all commands: --endpoint, --endpoints-file, --json, --timeout (replay-ctl --help).\n");
}

static const struct ctl_command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = schema_nearest(name, names, N_COMMANDS);
    return near ? ctl_usage("there is no command '%s' (did you mean '%s'?)", name, near)
                : ctl_usage("there is no command '%s'", name);
}

/* ---- options ---- */

enum {
    OPT_JSON = 256,
    OPT_TIMEOUT,
    OPT_FILE,
    OPT_VERSION,
    OPT_LIMIT,
    OPT_TABLE,
    OPT_SAVE,
    OPT_INTERVAL,
    OPT_COUNT,
    OPT_VALUES
};

static const struct option options[] = {
    {"endpoint", required_argument, NULL, 'e'},
    {"endpoints-file", required_argument, NULL, OPT_FILE},
    {"json", no_argument, NULL, OPT_JSON},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPT_VERSION},
    {"limit", required_argument, NULL, OPT_LIMIT},
    {"table", required_argument, NULL, OPT_TABLE},
    {"save", required_argument, NULL, OPT_SAVE},
    {"interval", required_argument, NULL, OPT_INTERVAL},
    {"count", required_argument, NULL, OPT_COUNT},
    {"values", required_argument, NULL, OPT_VALUES},
    {NULL, 0, NULL, 0},
};

struct line {
    const char *endpoint;
    const char *file;
    bool help, version;
};

/* 0, or an exit code after a message. */
static int read_time(const char *name, const char *text, int64_t *out_ns)
{
    if (schema_parse_time(text, out_ns) && *out_ns > 0)
        return 0;
    return ctl_usage("--%s is '%s'; it needs a number with a unit, like 500ms or 3s", name, text);
}

static int read_number(const char *name, const char *text, uint64_t most, uint64_t *out)
{
    int64_t value;
    if (schema_parse_int(text, &value) && value >= 0 && (uint64_t)value <= most) {
        *out = (uint64_t)value;
        return 0;
    }
    return ctl_usage("--%s is '%s'; it needs a whole number", name, text);
}

static int read_option(int option, const char *argument, struct ctl *ctl, struct line *line)
{
    int rc = 0;
    int64_t ns = 0;
    uint64_t number = 0;
    switch (option) {
    case 'e':
        line->endpoint = argument;
        return 0;
    case OPT_FILE:
        line->file = argument;
        return 0;
    case OPT_JSON:
        ctl->json = true;
        return 0;
    case OPT_TIMEOUT:
        rc = read_time("timeout", argument, &ns);
        if (rc == 0)
            ctl->timeout_ms = (ns + NS_PER_MS - 1) / NS_PER_MS;
        ctl->given |= CTL_TIMEOUT;
        return rc;
    case OPT_INTERVAL:
        ctl->given |= CTL_INTERVAL;
        return read_time("interval", argument, &ctl->interval_ns);
    case OPT_LIMIT:
        ctl->given |= CTL_LIMIT;
        return read_number("limit", argument, UINT64_MAX, &ctl->limit);
    case OPT_COUNT:
        ctl->given |= CTL_COUNT;
        return read_number("count", argument, UINT64_MAX, &ctl->count);
    case OPT_VALUES:
        ctl->given |= CTL_VALUES;
        rc = read_number("values", argument, UINT32_MAX, &number);
        if (rc == 0)
            ctl->values = (uint32_t)number;
        return rc;
    case OPT_TABLE:
        ctl->given |= CTL_TABLE;
        ctl->table = argument;
        return 0;
    case OPT_SAVE:
        ctl->given |= CTL_SAVE;
        ctl->save = argument;
        return 0;
    case OPT_VERSION:
        line->version = true;
        return 0;
    case 'h':
        line->help = true;
        return 0;
    default:
        fputs("Try 'replay-ctl --help'.\n", stderr);
        return CTL_USAGE;
    }
}

static int check_line(const struct ctl_command *command, const struct ctl *ctl)
{
    static const char *const names[] = {"limit", "table", "save", "interval", "count", "values"};
    for (uint32_t bit = 0; bit < 6; bit++) {
        if (ctl->given & ~command->options & 1u << bit)
            return ctl_usage("--%s is no option of '%s'", names[bit], command->name);
    }
    if (ctl->argc < command->least)
        return ctl_usage("'%s' needs more: replay-ctl %s %s", command->name, command->name, command->arguments);
    if (ctl->argc > command->most)
        return ctl_usage("'%s' is too much for: replay-ctl %s %s", ctl->argv[command->most], command->name,
                         command->arguments);
    return 0;
}

/* ---- where the broker is ---- */

static int find_endpoint(const struct line *line, char **out)
{
    const char *environment = getenv("REPLAY_ENDPOINT");
    if (line->endpoint && line->file)
        return ctl_usage("--endpoint and --endpoints-file exclude each other");
    rp_error err = {0};
    if (line->file)
        return endpoint_from_file(line->file, out, &err) == RP_OK ? 0 : ctl_usage("%s", err.text);
    *out = strdup(line->endpoint ? line->endpoint : environment && environment[0] ? environment : ENDPOINT_DEFAULT);
    return *out ? 0 : CTL_REFUSED;
}

static int run(struct ctl *ctl, const struct ctl_command *command, const char *endpoint)
{
    rp_error err = {0};
    rp_client_options client = {.struct_size = sizeof client, .name = "replay-ctl"};
    ctl->client = rp_client_connect(endpoint, &client, ctl->timeout_ms, &err);
    if (!ctl->client) {
        if (err.status == RP_INVALID_ARGUMENT)
            return ctl_usage("%s", err.text);
        if (err.status == RP_UNAVAILABLE || err.status == RP_DEADLINE_EXCEEDED) {
            format_buffer waited;
            err_set(&err, RP_UNAVAILABLE, "no broker answers at %s (waited %s)", endpoint,
                    format_time(waited, (uint64_t)ctl->timeout_ms * 1000000));
        }
        return ctl_fail(ctl, &err);
    }
    ctl->conn = client_conn(ctl->client);
    int rc = command->run(ctl);
    rp_client_destroy(&ctl->client);
    if (fflush(stdout) != 0 || ferror(stdout))
        return rc == CTL_OK ? CTL_REFUSED : rc;
    return rc;
}

int main(int argc, char **argv)
{
    struct ctl ctl = {.timeout_ms = 3000, .interval_ns = NS_PER_S, .limit = 20};
    struct line line = {0};
    int option, rc;
    log_set_level(LEVEL_OFF); /* the library's own lines: what matters is told by the commands */
    signal(SIGPIPE, SIG_IGN); /* "replay-ctl top | head" ends with a write error, not by a signal */
    while ((option = getopt_long(argc, argv, "e:h", options, NULL)) != -1) {
        if ((rc = read_option(option, optarg, &ctl, &line)) != 0)
            return rc;
    }
    ctl.argc = (uint32_t)(argc - optind);
    ctl.argv = argv + optind;
    if (line.version) {
        printf("replay-ctl %s\n", rp_version());
        return CTL_OK;
    }
    if (ctl.argc && strcmp(ctl.argv[0], "help") == 0) {
        line.help = true;
        ctl.argc--;
        ctl.argv++;
    }
    if (ctl.argc == 0) {
        if (!line.help)
            return ctl_usage("a command is needed: info, why, top ...");
        print_help();
        return CTL_OK;
    }
    const struct ctl_command *command = find_command(ctl.argv[0]);
    if (!command)
        return unknown_command(ctl.argv[0]);
    if (line.help) {
        print_command_help(command);
        return CTL_OK;
    }
    ctl.argc--;
    ctl.argv++;
    if ((rc = check_line(command, &ctl)) != 0)
        return rc;
    if (command->options & CTL_FILES && ctl.argc > 0) {
        rc = command->run(&ctl);
        return fflush(stdout) == 0 && !ferror(stdout) ? rc : rc == CTL_OK ? CTL_REFUSED : rc;
    }
    char *endpoint = NULL;
    if ((rc = find_endpoint(&line, &endpoint)) == 0)
        rc = run(&ctl, command, endpoint);
    free(endpoint);
    return rc;
}
