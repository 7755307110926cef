/* replay-bench: how fast the broker is, as a share of what libzmq alone moves. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "proto/config/cli.h"

/* ---- values ---- */

/* Takes one of two words, which the row's prefix lists: "tcp ipc". The second one means true. */
static int take_choice(const struct cli *cli, const struct cli_option *option, const char *text, void *target)
{
    const char *second = strchr(option->prefix, ' ') + 1;
    size_t first = (size_t)(second - option->prefix) - 1;
    bool yes = strcmp(text, second) == 0;
    if (!yes && (strlen(text) != first || strncmp(text, option->prefix, first) != 0))
        return cli_usage(cli->program, "--%s %s: it may be %.*s or %s", option->name, text, (int)first, option->prefix,
                         second);
    *(bool *)((char *)target + option->at) = yes;
    return CLI_GO_ON;
}

static int take_frames(const struct cli *cli, const struct cli_option *option, const char *text, void *target)
{
    ((struct options *)target)->lend_set = true;
    return take_choice(cli, option, text, target);
}

/* Who has an option: every command that starts a broker (1), those inside one process, or only some. */
enum { WHO_RUN = 1, WHO_SHARDS = 2, WHO_ALL = 4 };

#define AT(field) CLI_AT(struct options, field)
#define REAL(field, from, to) CLI_REAL, AT(field), from, to
#define WHOLE(field, from, to) CLI_WHOLE, AT(field), from, to
#define CHOICE(field, words) CLI_TAKE, AT(field), .prefix = words, .take = take_choice
static const struct cli_option rows[] = {
    {"json", 0, NULL, "print one JSON object", ~0u, CLI_SWITCH, AT(json)},
    {"repeat", 0, "N", "measure each side N times, in turn (default 5); medians are shown", ~0u,
     WHOLE(repeats, 1, MOST_REPEATS)},
    {"seconds", 0, "S", "length of one measurement (default 1; all: 0.4)", WHO_RUN, REAL(seconds, 0.05, 600)},
    {"size", 0, "BYTES", "of an item (default 400)", 1, WHOLE(size, 4, 16e6)},
    {"items", 0, "N", "in the table, which is filled first (default 1M, or as many as make 1 GB)", WHO_RUN,
     WHOLE(items, 1000, 1e8)},
    {"per-message", 0, "N", "items in an ingest message (default 50; 1 from 4 kB on)", 1, WHOLE(per_message, 1, 1000)},
    {"batch", 0, "N", "items in a sample or update request (default 256; less from 4 kB on)", 1, WHOLE(batch, 1, 4096)},
    {"in-flight", 0, "N", "requests under way on each connection (default 16; updates 64, as libreplay)", 1,
     WHOLE(in_flight, 1, 500)},
    {"clients", 0, "N", "connections (default 1)", 1, WHOLE(clients, 1, 4000)},
    {"processes", 0, "N", "that they are spread over (default: up to 4)", 1, WHOLE(processes, 1, 32)},
    {"io-threads", 0, "N", "of the broker and of the raw server (default 1)", 1, WHOLE(io_threads, 1, 16)},
    {"shards", 0, "N", "brokers that are one (default 4; lag: one)", WHO_SHARDS, WHOLE(shards, 2, 32)},
    {"only", 0, "TEXT", "rows whose name contains TEXT", WHO_SHARDS | WHO_ALL, CLI_TEXT, AT(only)},
    {"strict", 0, NULL, "the exit status is 3 if a goal is missed", WHO_ALL, CLI_SWITCH, AT(strict)},
    {"rate", 0, "N", "items/s that writers offer (default: as many as they can)", 1, REAL(rate, 1, 1e9)},
    {"dir", 0, "FOLDER", "where checkpoint and journal write (default: $TMPDIR or /tmp)", 1, CLI_TEXT, AT(dir)},
    {"transport", 0, "NAME", "tcp (loopback, default) or ipc", 1, CHOICE(ipc, "tcp ipc")},
    {"client", 0, "NAME", "thin (frames encoded before, nothing decoded; default) or library (libreplay)", 1,
     CHOICE(library, "thin library")},
    {"frames", 0, "HOW",
     "copy: senders copy their frames, as zmq_send does (default below 4 kB); lend: they lend them to\n"
     "                     libzmq where they lie (default from 4 kB on). The raw server, and the writers of both sides",
     1, CLI_TAKE, AT(lend), .prefix = "copy lend", .take = take_frames},
    {"against", 0, "N", "no raw side: compare with a second broker whose table has N items", 1,
     WHOLE(against, 1000, 1e8)},
    {"quick", 0, NULL, "a smoke run of a few seconds; its figures mean little", ~0u, CLI_SWITCH, AT(quick)},
    {"help", 'h', NULL, NULL, ~0u, CLI_SWITCH, AT(help)},
};

/* ---- commands ---- */

struct command {
    const char *name;
    bench_command *run;
    enum work work;     /* of command_one */
    uint32_t who;       /* WHO bits: its options */
    const char *client; /* that it measures with, if that is no option; "": none */
    const char *summary;
    const char *text;
};

static const struct command commands[] = {
    {"all", command_all, 0, WHO_RUN | WHO_ALL, "thin or library",
     "every row with its reference and its goal, as one table",
     "Inserts, samples and updates through libreplay and by thin clients, over tcp and on the same host, of 400 B to\n"
     "400 kB, with many connections, with CURVE and with a journal; under five minutes on two cores. --only finds\n"
     "more rows of CURVE, of the journal and of mixed loads. The options that count are --json, --repeat, --seconds,\n"
     "--items, --only, --strict, --transport, --io-threads, --dir and --quick.\n"},
    {"insert", command_one, WORK_INSERT, WHO_RUN, NULL, "inserts/s against PUSH -> PULL",
     "Writers push items into a full table. An item counts when the broker says that it is in the table.\n"},
    {"sample", command_one, WORK_SAMPLE, WHO_RUN, NULL, "prioritized samples/s against ROUTER <-> DEALER",
     "Samplers ask for batches from a full table (prioritized, exponent 0.6). Items in replies count.\n"},
    {"update", command_one, WORK_UPDATE, WHO_RUN, NULL, "priority updates/s against ROUTER <-> DEALER",
     "Requests with random keys of a full table and new priorities. Updates that were answered count.\n"},
    {"mixed", command_one, WORK_BOTH, WHO_RUN, NULL, "a writer and a sampler with updates, alone and together",
     "The sampler sends new priorities for each batch that it gets.\n"},
    {"checkpoint", command_checkpoint, 0, WHO_RUN, NULL,
     "checkpoints against plain files: stall, write, second one, load; longest stretch",
     "Of 1M items of 400 B: how fast a checkpoint is written next to a file of the same size with the same fsync, how\n"
     "long a sampler waits meanwhile, how large the next one is after 1% has changed. Of 1M items of 1000 B: how fast\n"
     "they are loaded next to plain reading of the files, both from the disk (page cache dropped) and from memory. "
     "Then\n"
     "the longest stretch of the core thread with 10M items. Counts: --repeat, --items, --size, --dir, --quick.\n"},
    {"shards", command_shards, 0, WHO_RUN | WHO_SHARDS, NULL,
     "several brokers that are one against one broker, and what must hold over them",
     "Inserts, samples and updates of --shards brokers against one, by thin clients (as many as shards, each at one of "
     "them) and\n"
     "through libreplay; one learner process fed by all; actors of which half are at one shard; a million draws with "
     "masses\n"
     "3:1:1:1 against their probabilities, ten times. Counts: --shards, --processes (for each shard), --repeat, "
     "--seconds,\n"
     "--items, --size, --quick.\n"},
    {"params", command_params, 0, WHO_RUN, "library",
     "8 subscribers that fetch parameters of 1 GB against ROUTER <-> DEALER with parts of the same size",
     "All over tcp; then a put of the value, and a subscriber on the same host that maps it. The options that count "
     "are "
     "--json,\n"
     "--repeat, --seconds, --items (parts of 512 KiB), --transport, --io-threads and --quick.\n"},
    {"lag", command_lag, 0, WHO_RUN | WHO_SHARDS, "library",
     "groups and leases against a plain queue; samples from 1M items whose window of versions moves every 10 ms",
     "Items of 1 kB in groups of 8, or under lease, through libreplay. The options that count are --json, --only, "
     "--repeat,\n"
     "--seconds, --items (of the window), --batch, --shards (groups, with as many writers and samplers), --transport, "
     "--io-threads\n"
     "and --quick.\n"},
    {"agent", command_agent, 0, WHO_RUN, "library",
     "steps/s of an actor on CartPole-v1, and a DQN learner's step against bare CBLAS",
     "The actor alone, with its network, and with the adder that writes into a broker. The options that count are\n"
     "--json, --repeat, --seconds, --items, --transport, --io-threads and --quick.\n"},
    {"tree", command_tree, 0, WHO_RUN, "", "the broker's tree of priorities next to textbook trees of other fan-outs",
     "CPU time of one thread for a change and for a pick, in batches of 256, of 10k leaves up to --items (10M). "
     "Counts:\n"
     "--json, --repeat, --seconds, --items, --quick.\n"},
};

static bool options_read(struct options *self, const struct command *command, int argc, char **argv)
{
    static char program[64];
    bool all = command->run == command_all;
    snprintf(program, sizeof program, "replay-bench %s", argv[0]);
    const struct cli cli = {
        .program = program, .options = rows, .n = sizeof rows / sizeof rows[0], .who = command->who};
    *self = (struct options){
        .repeats = 5, .seconds = all ? 0.4 : 1, .warm_seconds = all ? 0.2 : 0.3, .size = 400, .io_threads = 1};
    self->table = all;
    self->work = command->work;
    argv[0] = program; /* getopt begins its messages with argv[0] */
    if (cli_read(&cli, self, argc, argv) != CLI_GO_ON)
        return false;
    if (optind < argc) {
        cli_usage(program, "unexpected argument '%s'", argv[optind]);
        return false;
    }
    if (self->quick) {
        self->repeats = 2;
        self->seconds = 0.2;
        self->warm_seconds = 0.05;
        if (!self->items)
            self->items = 20000;
    }
    return true;
}

static int help(FILE *out)
{
    fputs("Usage: replay-bench COMMAND [--json] [options]\n"
          "\n"
          "Starts a replay-broker, loads it from other processes, and measures in turn with it plain libzmq that moves "
          "frames\n"
          "of the same number and sizes with the same malloc settings, I/O threads and connections (bench/raw.c).\n"
          "\n",
          out);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n"
          "'replay-bench COMMAND --help' has the options. bench/README.md says what the figures mean.\n"
          "Exit status: 0 measured (also when a goal was missed), 1 could not measure, 2 wrong command line, 3 a goal\n"
          "was missed, with --strict.\n",
          out);
    return out == stdout ? 0 : 2;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options;
    if (!options_read(&options, command, argc, argv))
        return 2;
    if (options.help) {
        const struct cli cli = {.options = rows, .n = sizeof rows / sizeof rows[0], .width = 18};
        printf("Usage: replay-bench %s [options]\n%s\n%s\n", command->name, command->summary, command->text);
        cli_print_options(&cli, command->who);
        puts("Numbers may end in k or M. The broker is $RP_BROKER, or replay-broker beside this program.");
        return 0;
    }
    uint32_t missed = 0;
    bool ok = children_init();
    if (ok) {
        report_begin(&options, command->name, command->client ? command->client : options.library ? "library" : "thin");
        ok = command->run(&options);
        missed = report_end(&options);
    }
    children_fini();
    return !ok ? 1 : options.strict && missed ? 3 : 0;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return help(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return help(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        printf("replay-bench %s\n", rp_version());
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return run(&commands[i], argc - 1, argv + 1);
    fprintf(stderr, "replay-bench: no command '%s'\n\n", argv[1]);
    return help(stderr);
}
