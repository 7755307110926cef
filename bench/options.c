#include "bench/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_BYTES 1000000000u

/* ---- values ---- */

static bool read_number(const struct cli *cli, const struct cli_option *option, const char *text, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end != text && (*end == 'k' || *end == 'M'))
        value *= *end++ == 'k' ? 1e3 : 1e6;
    if (end == text || *end || errno || !(value >= option->least && value <= option->most)) {
        cli_usage(cli->program, "--%s %s: a number from %g to %g is needed", option->name, text, option->least,
                  option->most);
        return false;
    }
    *out = value;
    return true;
}

int options_take_real(const struct cli *cli, const struct cli_option *option, const char *text, void *target)
{
    void *field = (char *)target + option->at;
    return read_number(cli, option, text, field) ? CLI_GO_ON : CLI_USAGE;
}

int options_take_whole(const struct cli *cli, const struct cli_option *option, const char *text, void *target)
{
    double number;
    char *field = (char *)target + option->at;
    if (!read_number(cli, option, text, &number))
        return CLI_USAGE;
    if (option->size == sizeof(uint32_t))
        *(uint32_t *)field = (uint32_t)number;
    else
        *(uint64_t *)field = (uint64_t)number;
    return CLI_GO_ON;
}

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

/* ---- the line ---- */

#define AT(field) CLI_AT(struct options, field)
#define REAL(field, from, to) CLI_TAKE, AT(field), from, to, .take = options_take_real
#define WHOLE(field, from, to) CLI_TAKE, AT(field), from, to, .take = options_take_whole
#define CHOICE(field, words) CLI_TAKE, AT(field), .prefix = words, .take = take_choice
static const struct cli_option rows[] = {
    {"json", 0, NULL, "print one JSON object", 1, CLI_SWITCH, AT(json)},
    {"repeat", 0, "N", "measure each side N times, in turn (default 5); medians are shown", 1,
     WHOLE(repeats, 1, MOST_REPEATS)},
    {"seconds", 0, "S", "length of one measurement (default 1)", 1, REAL(seconds, 0.05, 600)},
    {"size", 0, "BYTES", "of an item (default 400)", 1, WHOLE(size, 4, 16e6)},
    {"items", 0, "N", "in the table, which is filled first (default 1M, or as many as make 1 GB)", 1,
     WHOLE(items, 1000, 1e8)},
    {"per-message", 0, "N", "items in an ingest message (default 50; 1 from 4 kB on)", 1, WHOLE(per_message, 1, 1000)},
    {"batch", 0, "N", "items in a sample or update request (default 256; less from 4 kB on)", 1, WHOLE(batch, 1, 4096)},
    {"in-flight", 0, "N", "requests under way on each connection (default 8)", 1, WHOLE(in_flight, 1, 500)},
    {"clients", 0, "N", "connections (default 1)", 1, WHOLE(clients, 1, 4000)},
    {"processes", 0, "N", "that they are spread over (default: up to 4)", 1, WHOLE(processes, 1, 32)},
    {"io-threads", 0, "N", "of the broker and of the raw server (default 1)", 1, WHOLE(io_threads, 1, 16)},
    {"shards", 0, "N", "brokers that are one (default 4)", OPTIONS_SHARDS, WHOLE(shards, 2, 32)},
    {"only", 0, "TEXT", "rows whose name contains TEXT", OPTIONS_SHARDS, CLI_TEXT, AT(only)},
    {"rate", 0, "N", "items/s that writers offer (default: as many as they can; journal: 500k)", 1, REAL(rate, 1, 1e9)},
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
    {"all", 0, NULL, "every row of this command that has a goal", 1, CLI_SWITCH, AT(all)},
    {"quick", 0, NULL, "a smoke run of a few seconds; its figures mean little", 1, CLI_SWITCH, AT(quick)},
    {"help", 'h', NULL, NULL, 1, CLI_SWITCH, AT(help)},
};

void options_help(uint32_t who)
{
    const struct cli cli = {.options = rows, .n = sizeof rows / sizeof rows[0], .width = 18};
    cli_print_options(&cli, who);
    puts("Numbers may end in k or M. The broker is $RP_BROKER, or replay-broker beside this program.");
}

int options_line(const struct cli *cli, void *target, int argc, char **argv)
{
    argv[0] = (char *)(uintptr_t)cli->program; /* getopt begins its messages with argv[0] */
    int status = cli_read(cli, target, argc, argv);
    if (status == CLI_GO_ON && optind < argc)
        status = cli_usage(cli->program, "unexpected argument '%s'", argv[optind]);
    return status;
}

bool options_read(struct options *self, uint32_t who, int argc, char **argv)
{
    static char program[64];
    snprintf(program, sizeof program, "replay-bench %s", argv[0]);
    const struct cli cli = {.program = program, .options = rows, .n = sizeof rows / sizeof rows[0], .who = who};
    *self = (struct options){.repeats = 5, .seconds = 1, .warm_seconds = 0.3, .size = 400, .io_threads = 1};
    if (options_line(&cli, self, argc, argv) != CLI_GO_ON)
        return false;
    if (self->quick) {
        self->repeats = 2;
        self->seconds = 0.2;
        self->warm_seconds = 0.05;
        if (!self->items)
            self->items = 20000;
    }
    return true;
}

void options_settle(struct options *self)
{
    bool large = self->size >= LARGE_BYTES;
    uint64_t fit = TABLE_BYTES / self->size;
    if (!self->clients)
        self->clients = 1;
    if (!self->items)
        self->items = fit < 1000000 ? (fit < 1000 ? 1000 : fit) : 1000000;
    if (self->quick && large && self->items * self->size > TABLE_BYTES / 8)
        self->items = TABLE_BYTES / 8 / self->size;
    if (!self->per_message)
        self->per_message = large ? 1 : 50;
    if (!self->batch)
        self->batch = !large ? 256 : self->size < 100000 ? 64 : 16;
    if (!self->lend_set)
        self->lend = large;
    if (!self->in_flight)
        self->in_flight = 8;
    if (!self->processes || self->processes > self->clients)
        self->processes = self->clients < 4 ? self->clients : 4;
}
