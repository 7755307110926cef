/* The command line of replay-ctl: options, commands, help, exit codes. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/log.h"
#include "proto/config/cli.h"
#include "proto/config/schema.h"

struct command {
    const char *name;
    const char *arguments; /* "TABLE [--limit N]" */
    const char *summary;   /* one line */
    const char *help;      /* further text for --help; may be "" */
    uint32_t options;      /* ctl_option bits that the command takes */
    uint32_t least, most;  /* arguments */
    int (*run)(struct ctl *ctl);
};

static const struct command commands[] = {
    {"info", "[TABLE] [--shards]", "server, tables, slots and counters",
     "With a table's name, only that table, in full: limiter, rates, ages, and what inserts and samples would wait "
     "for.\n"
     "The numbers of a broker of several shards are those of all; --shards adds rows for each.",
     CTL_SHARDS, 0, 1, ctl_info},
    {"why", "[--shards]", "who waits, for what, and how much is missing",
     "One line for each writer, sampler or learner that waits inside the broker. Prints 'nothing waits' if there is "
     "none.\n"
     "--shards adds a column with the shard.",
     CTL_SHARDS, 0, 0, ctl_why},
    {"top", "[--interval 1s] [--count N] [--shards]", "a view that refreshes itself",
     "Shows what limits, memory, tables, those who wait, and sessions. Keys: s sorts the sessions, arrows and PgUp,\n"
     "PgDn move through them, p pauses, ? helps, q quits. If the output is not a terminal, or with --json, every "
     "frame\n"
     "is printed instead (--count N frames). --shards adds a line to each table for each shard.",
     CTL_INTERVAL | CTL_COUNT | CTL_SHARDS, 0, 0, ctl_top},
    {"items", "TABLE [--limit N] [--shards]", "the items of a table, without their data",
     "Prints the first N items (default 20; 0 for all). --shards adds a column with the shard.", CTL_LIMIT | CTL_SHARDS,
     1, 1, ctl_items},
    {"item", "KEY [--table T] [--values N]", "one item: metadata and decoded values",
     "KEY is decimal, or hexadecimal with 0x. Without --table, all tables are searched. Prints at most N values of "
     "each\n"
     "field (default 12; with --json 1000).",
     CTL_TABLE | CTL_VALUES, 1, 1, ctl_item},
    {"limiter", "TABLE [KEY=VALUE ... | pause | go] [--shards]", "show or change a table's rate limiter",
     "Keys: samples_per_insert, min_size, min_diff, max_diff, error_buffer (sets both bounds around min_size *\n"
     "samples_per_insert; without bounds, a new ratio or min_size keeps the buffer), max_lag. All changes are made at "
     "once, or\n"
     "none, and survive a restart with a journal until the configuration changes. With shards the values are those of "
     "the whole table, "
     "of\n"
     "which each shard gets its part; --shards adds a row for each. pause: inserts and samples wait until go, or a "
     "restart.",
     CTL_SHARDS, 1, 16, ctl_limiter},
    {"checkpoint", "[backup|ls|verify|show|export DIR ...]", "make a checkpoint, or inspect those in a folder",
     "  checkpoint                      make a checkpoint now and wait until it is on disk (at most --timeout)\n"
     "  checkpoint backup DIR           make one, and copy the broker's files to the new folder DIR while it serves; "
     "run "
     "this on\n"
     "                                  the broker's machine. A broker starts with the copy, here or elsewhere\n"
     "  checkpoint ls DIR               the checkpoints and segments of a folder\n"
     "  checkpoint verify DIR           read every byte of every file and print what is damaged; exit status 1 if any "
     "is.\n"
     "                                  A torn end, which a broker writes now or was killed in, is no damage\n"
     "  checkpoint show DIR [N]         what a broker would start with: newest state with the journal, or checkpoint "
     "N\n"
     "  checkpoint export DIR [N] --table T [--limit N] [--values N] [--save FILE]\n"
     "                                  items of a table in the order of insertion, with decoded values, one JSON "
     "object per line\n"
     "All but the first two read only the files, whether a broker runs or not, and change nothing.",
     CTL_FILES | CTL_TABLE | CTL_LIMIT | CTL_VALUES | CTL_SAVE, 0, 3, ctl_checkpoint},
    {"delete", "TABLE KEY ...", "remove single items of a table",
     "KEY is decimal, or hexadecimal with 0x, as 'items' shows it. Exit status 1 if a key is not in the table.", 0, 2,
     CTL_MAX_KEYS + 1, ctl_delete},
    {"reset", "TABLE [--shards]", "remove all items of a table and zero its limiter",
     "--shards adds how many items each shard has removed.", CTL_SHARDS, 1, 1, ctl_reset},
    {"params", "NAME --save FILE", "save a parameter slot to a file", "FILE may be - for the standard output.",
     CTL_SAVE, 1, 1, ctl_params},
    {"key", "new|show|allow|change|revoke|list|rotate ...", "key files, and the keys that a broker lets in",
     "  key new FILE [--keys DIR --role ROLES] [--broker PUBLIC]\n"
     "                                  make a key; with --keys let it into the broker with that folder\n"
     "  key show FILE|DIR               its name and public key (DIR: the broker's)\n"
     "  key allow DIR NAME PUBLIC --role ROLES [sessions=N granted=BYTES waiting=N unread=BYTES inserts=N]\n"
     "                                  let a key in, with limits of its own\n"
     "  key change DIR NAME|PUBLIC [--role ROLES] [sessions=N ...]\n"
     "                                  give it other roles or limits; its next message counts with them\n"
     "  key revoke DIR NAME|PUBLIC      let it in no more: its next message is refused\n"
     "  key list DIR                    the keys that are let in\n"
     "  key rotate DIR [finish]         announce a new key of the broker; later put it in place of the old one\n"
     "  key trust FILE PUBLIC           name a further key of the broker in a key file\n"
     "ROLES: actor, learner, observer, admin, or several joined by '+'. Put public keys in single quotes: they "
     "contain\n"
     "characters that shells read. All of these read and write files only; a running broker notices. docs/OPERATE.md.",
     CTL_FILES | CTL_KEYS, 1, 9, ctl_key},
    {"sessions", "[--shards]", "writers: what they have sent, what waits, how long they have been silent",
     "A writer has a session at each shard; --shards adds a column with the shard.", CTL_SHARDS, 0, 0, ctl_sessions},
    {"trace", "[--seconds S] FILE", "record what the broker and its clients do, for Perfetto",
     "Records spans for S seconds (default 5, at most 60) in the broker and in all clients that use this library, and\n"
     "writes them to FILE (- for the standard output) in Chrome's trace format: https://ui.perfetto.dev opens it. "
     "Needs\n"
     "an admin's key where the broker uses keys. docs/OPERATE.md says what to look for.",
     CTL_SECONDS, 1, 1, ctl_trace},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* ---- options ---- */

/* The command line. */
struct command_line {
    struct ctl ctl;
    struct ctl_place place;
    int64_t timeout_ns;
    bool help, version;
};

/* The bit of options that all commands have. */
#define EVERY (1u << 31)
#define AT(field) CLI_AT(struct command_line, field)
static const struct cli_option options[] = {
    {"endpoint", 'e', "ENDPOINT",
     "service endpoint of the broker (or set REPLAY_ENDPOINT; otherwise\n"
     "                              " ENDPOINT_DEFAULT ")",
     EVERY, CLI_TEXT, AT(place.endpoint)},
    {"endpoints-file", 0, "FILE", "read it from the file that replay-broker --endpoints-file wrote", EVERY, CLI_TEXT,
     AT(place.file)},
    {"run", 0, "RUN", "the broker of a run of replay-launch: its folder, its name below runs/, or latest", EVERY,
     CLI_TEXT, AT(place.run)},
    {"json", 0, NULL, "print JSON, one object on a line", EVERY, CLI_SWITCH, AT(ctl.json)},
    {"timeout", 0, "TIME", "how long to wait for the broker: 500ms, 10s (default), 1m", EVERY | CTL_TIMEOUT, CLI_TIME,
     AT(timeout_ns), 1},
    {"help", 'h', NULL, "this text; after a command, about that command", EVERY, CLI_SWITCH, AT(help)},
    {"version", 0, NULL, "", EVERY, CLI_SWITCH, AT(version)},
    {"shards", 0, NULL, NULL, CTL_SHARDS, CLI_SWITCH, AT(ctl.shards)},
    {"limit", 0, "N", NULL, CTL_LIMIT, CLI_WHOLE, AT(ctl.limit)},
    {"table", 0, "T", NULL, CTL_TABLE, CLI_TEXT, AT(ctl.table)},
    {"save", 0, "FILE", NULL, CTL_SAVE, CLI_TEXT, AT(ctl.save)},
    {"interval", 0, "TIME", NULL, CTL_INTERVAL, CLI_TIME, AT(ctl.interval_ns), 1},
    {"count", 0, "N", NULL, CTL_COUNT, CLI_WHOLE, AT(ctl.count)},
    {"seconds", 0, "S", NULL, CTL_SECONDS, CLI_TEXT, AT(ctl.seconds)},
    {"role", 0, "ROLES", NULL, CTL_KEYS, CLI_TEXT, AT(ctl.role)},
    {"keys", 0, "DIR", NULL, CTL_KEYS, CLI_TEXT, AT(ctl.keys)},
    {"broker", 0, "PUBLIC", NULL, CTL_KEYS, CLI_TEXT, AT(ctl.broker_key)},
    {"values", 0, "N", NULL, CTL_VALUES, CLI_WHOLE, AT(ctl.values), .most = UINT32_MAX},
};
#define N_OPTIONS (sizeof options / sizeof options[0])

static int note(const struct cli_option *option, void *target)
{
    struct command_line *line = target;
    line->ctl.given |= option->who;
    return CLI_GO_ON;
}

static const struct cli cli = {
    .program = "replay-ctl", .options = options, .n = N_OPTIONS, .who = ~0u, .width = 27, .admit = note};

/* ---- help ---- */

static void print_help(void)
{
    printf("Usage: replay-ctl [options] COMMAND [arguments]\n\n"
           "Inspects and operates a running replay-broker.\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-10s %-46s  %s\n", commands[i].name, commands[i].arguments, commands[i].summary);
    puts("\nOptions:");
    cli_print_options(&cli, EVERY);
    puts("\nExit status: 0 success, 1 the broker refused (it says why), 2 wrong usage, 3 no broker answers");
}

static void print_command_help(const struct command *command)
{
    printf("Usage: replay-ctl [options] %s%s%s\n\n%c%s.\n", command->name, command->arguments[0] ? " " : "",
           command->arguments, command->summary[0] - ('a' - 'A'), command->summary + 1);
    if (command->help[0])
        printf("%s\n", command->help);
    printf("\nOptions for all commands: --endpoint, --endpoints-file, --run, --json, --timeout (replay-ctl --help).\n");
}

static int unknown_command(const char *name)
{
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = schema_nearest(name, names, N_COMMANDS);
    return near ? ctl_usage("unknown command '%s' (did you mean '%s'?)", name, near)
                : ctl_usage("there is no command '%s'", name);
}

static int check_line(const struct command *command, const struct ctl *ctl)
{
    for (uint32_t i = 0; i < N_OPTIONS; i++) {
        if (!(options[i].who & EVERY) && options[i].who & ctl->given & ~command->options)
            return ctl_usage("--%s is no option of '%s'", options[i].name, command->name);
    }
    if (ctl->argc < command->least)
        return ctl_usage("'%s' needs more arguments: replay-ctl %s %s", command->name, command->name,
                         command->arguments);
    if (ctl->argc > command->most)
        return ctl_usage("'%s' is one argument too many for: replay-ctl %s %s", ctl->argv[command->most], command->name,
                         command->arguments);
    return 0;
}

/* The exit status, unless the output is not whole; a reader who has seen enough needs no sentence. */
static int printed(int rc)
{
    struct stat about;
    bool flushed = fflush(stdout) == 0;
    if (flushed && !ferror(stdout))
        return rc;
    if (fstat(STDOUT_FILENO, &about) != 0 || !S_ISFIFO(about.st_mode))
        fprintf(stderr, "replay-ctl: the output could not be written%s%s\n", flushed ? "" : ": ",
                flushed ? "" : strerror(errno));
    return rc == CTL_OK ? CTL_REFUSED : rc;
}

static int run(struct ctl *ctl, const struct command *command, const char *endpoint)
{
    rp_client_options client = {.struct_size = sizeof client, .name = "replay-ctl"};
    ctl->client = client_connect_any(endpoint, &client, ctl->timeout_ms, &ctl->err);
    if (!ctl->client) {
        if (ctl->err.status == RP_INVALID_ARGUMENT)
            return ctl_usage("%s", ctl->err.text);
        if (ctl->err.status == RP_UNAVAILABLE || ctl->err.status == RP_DEADLINE_EXCEEDED)
            return ctl_unreachable(ctl, endpoint);
        return ctl_fail(ctl);
    }
    int rc = command->run(ctl);
    rp_info_free(&ctl->reply);
    rp_client_destroy(&ctl->client);
    return printed(rc);
}

int main(int argc, char **argv)
{
    struct command_line line = {.ctl = {.interval_ns = NS_PER_S, .limit = 20}, .timeout_ns = 10 * NS_PER_S};
    log_set_level(LEVEL_OFF); /* no lines of the library: the commands print what matters */
    signal(SIGPIPE, SIG_IGN); /* "replay-ctl top | head" ends with a write error, not by a signal */
    int rc = cli_read(&cli, &line, argc, argv);
    if (rc != CLI_GO_ON)
        return rc;
    struct ctl ctl = line.ctl;
    ctl.timeout_ms = (line.timeout_ns + NS_PER_MS - 1) / NS_PER_MS;
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
    const struct command *command = commands;
    while (command < commands + N_COMMANDS && strcmp(command->name, ctl.argv[0]) != 0)
        command++;
    if (command == commands + N_COMMANDS)
        return unknown_command(ctl.argv[0]);
    if (line.help) {
        print_command_help(command);
        return CTL_OK;
    }
    ctl.argc--;
    ctl.argv++;
    if ((rc = check_line(command, &ctl)) != 0)
        return rc;
    bool asks = command->run == ctl_checkpoint && ctl.argc > 0 && strcmp(ctl.argv[0], "backup") == 0;
    if (command->options & CTL_FILES && ctl.argc > 0 && !asks) {
        return printed(command->run(&ctl));
    }
    char *endpoint = NULL;
    if ((rc = ctl_find(&ctl, &line.place, &endpoint)) == 0 && endpoint)
        rc = run(&ctl, command, endpoint);
    free(endpoint);
    return rc;
}
