/* The command line of replay-bench: what to measure. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/config/cli.h"

#define MOST_REPEATS 101u
/* Items from this size on are "large": senders walk a store as large as the table, and a message has one item. */
#define LARGE_BYTES 4096u

enum work { WORK_INSERT, WORK_SAMPLE, WORK_UPDATE, WORK_BOTH, WORK_LIBRARY, WORK_IDLE };

struct options {
    bool json, quick, all, library, ipc, help;
    bool lend;     /* senders lend their frames instead of copying them */
    bool lend_set; /* --frames was given */
    uint32_t repeats;
    double seconds, warm_seconds;
    uint64_t size;    /* bytes of an item */
    uint64_t items;   /* in the table; this and the counts below are 0 until they are given or settled */
    uint64_t against; /* not 0: compare with a table of this many items instead of with libzmq */
    uint32_t per_message;
    uint32_t batch;
    uint32_t in_flight;
    uint32_t clients;   /* connections */
    uint32_t processes; /* number of processes over which they are spread */
    uint32_t io_threads;
    uint32_t shards;
    double rate;       /* items/s that writers offer; 0: unlimited */
    double heavier;    /* factor of their priorities; 0: 1 */
    const char *only;  /* rows whose name contains it; NULL: all */
    const char *dir;   /* folder for files; NULL: beside the run's other files */
    const char *extra; /* further lines of the broker's configuration, and of its table's; NULL: none */
    const char *table_extra;
    const char *service; /* endpoint of the broker; NULL: any */
    const char *limiter; /* of the table; NULL: min_size 1 */
    const char *session; /* the broker's settings for sessions; NULL: sessions outlive any pause */
};

/* Who has an option: every command, or only some. */
enum options_who { OPTIONS_ALL = 1, OPTIONS_SHARDS = 2 };

/* False: an error was printed. argv[0] is the command. */
bool options_read(struct options *self, uint32_t who, int argc, char **argv);
/* Prints the options' part of a command's help. */
void options_help(uint32_t who);
/* Reads a line that has options alone. CLI_GO_ON, or the exit status. */
int options_line(const struct cli *cli, void *target, int argc, char **argv);
/* Take a number between the row's bounds, which may end in k or M, into a double or into a uint32_t or uint64_t. */
int options_take_real(const struct cli *cli, const struct cli_option *option, const char *text, void *target);
int options_take_whole(const struct cli *cli, const struct cli_option *option, const char *text, void *target);
/* Fills in values that follow from the size of the items and were not given. */
void options_settle(struct options *self);

#endif
