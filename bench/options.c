#include "bench/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_BYTES 1000000000u

static const char help[] =
    "  --json             print one JSON object\n"
    "  --repeat N         measure each side N times, in turn (default 5); medians are shown\n"
    "  --seconds S        length of one measurement (default 1)\n"
    "  --size BYTES       of an item (default 400)\n"
    "  --items N          in the table, which is filled first (default 1M, or as many as make 1 GB)\n"
    "  --per-message N    items in an ingest message (default 50; 1 from 4 kB on)\n"
    "  --batch N          items in a sample or update request (default 256; less from 4 kB on)\n"
    "  --in-flight N      requests under way on each connection (default 8)\n"
    "  --clients N        connections (default 1)\n"
    "  --processes N      that they are spread over (default: up to 4)\n"
    "  --io-threads N     of the broker and of the raw server (default 1)\n"
    "  --rate N           items/s that writers offer (default: as many as they can; journal: 500k)\n"
    "  --dir FOLDER       where checkpoint and journal write (default: $TMPDIR or /tmp)\n"
    "  --transport NAME   tcp (loopback, default) or ipc\n"
    "  --client NAME      thin (frames encoded before, nothing decoded; default) or library (libreplay)\n"
    "  --frames HOW       copy: senders copy their frames, as zmq_send does (default below 4 kB); lend: they lend them "
    "to\n"
    "                     libzmq where they lie (default from 4 kB on). The raw server, and the writers of both sides\n"
    "  --against N        no raw side: compare with a second broker whose table has N items\n"
    "  --all              every row of this command that has a goal\n"
    "  --quick            a smoke run of a few seconds; its figures mean little\n"
    "Numbers may end in k or M. The broker is $RP_BROKER, or replay-broker beside this program.\n";

void options_help(void)
{
    fputs(help, stdout);
}

static bool read_number(const char *name, const char *text, double least, double most, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end != text && *end == 'k') {
        value *= 1e3;
        end++;
    } else if (end != text && *end == 'M') {
        value *= 1e6;
        end++;
    }
    if (end == text || *end || errno || !(value >= least && value <= most)) {
        fprintf(stderr, "replay-bench: --%s %s: a number from %g to %g is needed\n", name, text, least, most);
        return false;
    }
    *out = value;
    return true;
}

static bool choose(const char *name, const char *text, const char *no, const char *yes, bool *out)
{
    *out = strcmp(text, yes) == 0;
    if (*out || strcmp(text, no) == 0)
        return true;
    fprintf(stderr, "replay-bench: --%s %s: it may be %s or %s\n", name, text, no, yes);
    return false;
}

enum {
    JSON = 256,
    REPEAT,
    SECONDS,
    SIZE,
    ITEMS,
    PER_MESSAGE,
    BATCH,
    IN_FLIGHT,
    CLIENTS,
    PROCESSES,
    IO_THREADS,
    RATE,
    DIR,
    TRANSPORT,
    CLIENT,
    FRAMES,
    AGAINST,
    ALL,
    QUICK
};

static bool take(struct options *self, int option, const char *name, const char *text)
{
    double number = 0;
    bool ok = true;
    switch (option) {
    case JSON:
        self->json = true;
        break;
    case ALL:
        self->all = true;
        break;
    case QUICK:
        self->quick = true;
        break;
    case 'h':
        self->help = true;
        break;
    case TRANSPORT:
        ok = choose(name, text, "tcp", "ipc", &self->ipc);
        break;
    case CLIENT:
        ok = choose(name, text, "thin", "library", &self->library);
        break;
    case FRAMES:
        ok = self->lend_set = choose(name, text, "copy", "lend", &self->lend);
        break;
    case SECONDS:
        ok = read_number(name, text, 0.05, 600, &self->seconds);
        break;
    case SIZE:
        ok = read_number(name, text, 4, 16e6, &number);
        self->size = (uint64_t)number;
        break;
    case ITEMS:
        ok = self->items_set = read_number(name, text, 1000, 1e8, &number);
        self->items = (uint64_t)number;
        break;
    case AGAINST:
        ok = read_number(name, text, 1000, 1e8, &number);
        self->against = (uint64_t)number;
        break;
    case REPEAT:
        ok = read_number(name, text, 1, MOST_REPEATS, &number);
        self->repeats = (uint32_t)number;
        break;
    case PER_MESSAGE:
        ok = self->per_message_set = read_number(name, text, 1, 1000, &number);
        self->per_message = (uint32_t)number;
        break;
    case BATCH:
        ok = self->batch_set = read_number(name, text, 1, 4096, &number);
        self->batch = (uint32_t)number;
        break;
    case IN_FLIGHT:
        ok = self->in_flight_set = read_number(name, text, 1, 500, &number);
        self->in_flight = (uint32_t)number;
        break;
    case CLIENTS:
        ok = self->clients_set = read_number(name, text, 1, 4000, &number);
        self->clients = (uint32_t)number;
        break;
    case PROCESSES:
        ok = self->processes_set = read_number(name, text, 1, 32, &number);
        self->processes = (uint32_t)number;
        break;
    case RATE:
        ok = read_number(name, text, 1, 1e9, &self->rate);
        break;
    case DIR:
        self->dir = text;
        break;
    case IO_THREADS:
        ok = read_number(name, text, 1, 16, &number);
        self->io_threads = (uint32_t)number;
        break;
    default:
        ok = false;
    }
    return ok;
}

bool options_read(struct options *self, int argc, char **argv)
{
    static const struct option names[] = {{"json", no_argument, NULL, JSON},
                                          {"repeat", required_argument, NULL, REPEAT},
                                          {"seconds", required_argument, NULL, SECONDS},
                                          {"size", required_argument, NULL, SIZE},
                                          {"items", required_argument, NULL, ITEMS},
                                          {"per-message", required_argument, NULL, PER_MESSAGE},
                                          {"batch", required_argument, NULL, BATCH},
                                          {"in-flight", required_argument, NULL, IN_FLIGHT},
                                          {"clients", required_argument, NULL, CLIENTS},
                                          {"processes", required_argument, NULL, PROCESSES},
                                          {"io-threads", required_argument, NULL, IO_THREADS},
                                          {"rate", required_argument, NULL, RATE},
                                          {"dir", required_argument, NULL, DIR},
                                          {"transport", required_argument, NULL, TRANSPORT},
                                          {"client", required_argument, NULL, CLIENT},
                                          {"frames", required_argument, NULL, FRAMES},
                                          {"against", required_argument, NULL, AGAINST},
                                          {"all", no_argument, NULL, ALL},
                                          {"quick", no_argument, NULL, QUICK},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    *self =
        (struct options){.repeats = 5, .seconds = 1, .warm_seconds = 0.3, .size = 400, .clients = 1, .io_threads = 1};
    int at = 0;
    for (int option; (option = getopt_long(argc, argv, "h", names, &at)) != -1;) {
        if (option == '?' || !take(self, option, names[at].name, optarg)) {
            fprintf(stderr, "Try 'replay-bench %s --help'.\n", argv[0]);
            return false;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "replay-bench %s: unexpected argument '%s'\n", argv[0], argv[optind]);
        return false;
    }
    if (self->quick) {
        self->repeats = 2;
        self->seconds = 0.2;
        self->warm_seconds = 0.05;
        if (!self->items_set)
            self->items = 20000;
        self->items_set = true;
    }
    return true;
}

void options_settle(struct options *self)
{
    bool large = self->size >= LARGE_BYTES;
    uint64_t fit = TABLE_BYTES / self->size;
    if (!self->items_set)
        self->items = fit < 1000000 ? (fit < 1000 ? 1000 : fit) : 1000000;
    if (self->quick && large && self->items * self->size > TABLE_BYTES / 8)
        self->items = TABLE_BYTES / 8 / self->size;
    if (!self->per_message_set)
        self->per_message = large ? 1 : 50;
    if (!self->batch_set)
        self->batch = !large ? 256 : self->size < 100000 ? 64 : 16;
    if (!self->lend_set)
        self->lend = large;
    if (!self->in_flight_set)
        self->in_flight = 8;
    if (!self->processes_set || self->processes > self->clients)
        self->processes = self->clients < 4 ? self->clients : 4;
}
