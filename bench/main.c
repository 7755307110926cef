/* replay-bench: how fast the broker is, as a share of what libzmq alone moves. */
#include <stdio.h>
#include <string.h>

#include "bench/bench_agent.h"
#include "bench/bench_env.h"
#include "bench/bench_python.h"
#include "bench/bench_tree.h"
#include "bench/children.h"
#include "bench/commands.h"
#include "replay/error.h"

struct command {
    const char *name;
    int (*run)(struct options *options);
    const char *summary;
    const char *text;
};

static const struct command commands[] = {
    {"insert", command_insert, "inserts/s against PUSH -> PULL",
     "Writers push items into a full table. An item counts when the broker says that it is in the table.\n"},
    {"sample", command_sample, "prioritized samples/s against ROUTER <-> DEALER",
     "Samplers ask for batches from a full table (prioritized, exponent 0.6). Items in replies count.\n"},
    {"update", command_update, "priority updates/s against ROUTER <-> DEALER",
     "Requests with random keys of a full table and new priorities. Updates that were answered count.\n"},
    {"mixed", command_mixed, "a writer and a sampler with updates, alone and together",
     "The sampler sends new priorities for each batch that it gets. 16 requests in flight unless told otherwise.\n"},
    {"clients", command_clients, "inserts and samples with 64 and 200 connections",
     "--clients N takes one number instead.\n"},
    {"curve", command_curve, "inserts and samples with CURVE against libzmq with CURVE",
     "Items of 400 B, 20 kB and 400 kB. The broker checks the key of each message; libzmq alone lets every key in.\n"},
    {"checkpoint", command_checkpoint,
     "checkpoints against plain files: stall, write, second one, load; longest stretch",
     "Of 1M items of 400 B: how fast a checkpoint is written next to a file of the same size with the same fsync, how\n"
     "long a sampler waits meanwhile, how large the next one is after 1% has changed. Of 1M items of 1000 B: how fast\n"
     "they are loaded next to plain reading of the files, both from the disk (page cache dropped) and from memory. "
     "Then\n"
     "the longest stretch of the core thread with 10M items. Counts: --repeat, --items, --size, --dir, --quick.\n"},
    {"journal", command_journal, "inserts/s with the journal against without, at 500k items/s offered and at most",
     "Counts: --rate, --repeat, --seconds, --items, --size, --dir, --quick.\n"},
    {"idle", command_idle, "inserts/s of a writer beside 1,000 sessions that are idle against alone",
     "The others have written, so that they hold credit, and are silent then. The writer counts 2 s after it starts "
     "to\n"
     "write. Counts: --clients (the idle ones), --repeat, --seconds, --items, --size, --quick.\n"},
    {"http", command_http, "inserts and samples of a broker that is scraped and watched against nobody looking",
     "5 scrapes of /metrics a second, and two pages that poll /api. One broker; those who look are "
     "paused "
     "in\n"
     "turn. Counts: --repeat, --seconds, --items, --size, --quick.\n"},
    {"shards", command_shards, "several brokers that are one against one broker, and what must hold over them",
     "Inserts, samples and updates of --shards brokers against one, by thin clients (as many as shards, each at one of "
     "them) and\n"
     "through libreplay; one learner process fed by all; actors of which half are at one shard; a million draws with "
     "masses\n"
     "3:1:1:1 against their probabilities, ten times. Counts: --shards, --processes (for each shard), --repeat, "
     "--seconds,\n"
     "--items, --size, --quick.\n"},
    {"agent", command_agent, "steps/s of an actor on CartPole-v1, and a DQN learner's step against bare CBLAS",
     "The actor alone, with its network, and with the adder that writes into a broker. The options that count are\n"
     "--json, --repeat, --seconds, --items, --transport, --io-threads and --quick.\n"},
};

static int help(FILE *out)
{
    fputs("usage: replay-bench COMMAND [--json] [options]\n"
          "\n"
          "Starts a replay-broker, loads it from other processes, and measures in turn with it plain libzmq that moves "
          "frames\n"
          "of the same number and sizes with the same malloc settings, I/O threads and connections (bench/raw.c).\n"
          "\n",
          out);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("  tree       time to change and to pick priorities, inside one process\n"
          "  env        steps/s of each built-in environment, inside one process\n"
          "  python     the Python package against the C library, in one run\n"
          "\n"
          "'replay-bench COMMAND --help' has the options. bench/README.md says what the figures mean.\n"
          "Exit status: 0 measured (also when a goal was missed), 1 could not measure, 2 wrong command line.\n",
          out);
    return out == stdout ? 0 : 2;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options;
    uint32_t who = command->run == command_shards ? OPTIONS_ALL | OPTIONS_SHARDS : OPTIONS_ALL;
    if (!options_read(&options, who, argc, argv))
        return 2;
    if (options.help) {
        printf("usage: replay-bench %s [options]\n%s\n%s\n", command->name, command->summary, command->text);
        options_help(who);
        return 0;
    }
    int status = children_init() ? command->run(&options) : 1;
    children_fini();
    return status;
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
    if (strcmp(argv[1], "tree") == 0)
        return bench_tree(argc - 1, argv + 1);
    if (strcmp(argv[1], "env") == 0)
        return bench_env(argc - 1, argv + 1);
    if (strcmp(argv[1], "python") == 0)
        return bench_python(argc - 1, argv + 1);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return run(&commands[i], argc - 1, argv + 1);
    fprintf(stderr, "replay-bench: no command '%s'\n\n", argv[1]);
    return help(stderr);
}
