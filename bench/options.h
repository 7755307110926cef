/* What is to be measured: the command line of replay-bench. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define MOST_REPEATS 101u
/* Items from this size on are "large": senders walk a store as large as the table, and items travel one to a message. */
#define LARGE_BYTES 4096u

enum work { WORK_INSERT, WORK_SAMPLE, WORK_UPDATE, WORK_BOTH, WORK_LIBRARY, WORK_IDLE };

struct options {
    bool json, quick, all, library, ipc, help;
    bool lend; /* senders lend their frames instead of copying them */
    uint32_t repeats;
    double seconds, warm_seconds;
    uint64_t size;    /* bytes of an item */
    uint64_t items;   /* in the table */
    uint64_t against; /* not 0: compare with a table of so many items instead of with libzmq */
    uint32_t per_message;
    uint32_t batch;
    uint32_t in_flight;
    uint32_t clients;   /* connections */
    uint32_t processes; /* that they are spread over */
    uint32_t io_threads;
    double rate;       /* items/s that writers offer; 0: as many as they can */
    const char *dir;   /* where files are written; NULL: beside the run's other files */
    const char *extra; /* further lines of the broker's configuration, and of its table's; NULL: none */
    const char *table_extra;
    const char *session; /* the broker's settings for sessions; NULL: they live through any pause */
    bool per_message_set, batch_set, items_set, clients_set, processes_set, in_flight_set, lend_set;
};

/* False: what was wrong has been printed. argv[0] is the command. */
bool options_read(struct options *self, int argc, char **argv);
/* The options' part of a command's help. */
void options_help(void);
/* Fills in what follows from the size of the items and was not given. */
void options_settle(struct options *self);

#endif
