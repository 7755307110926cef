/* A run: parties (a server with its load generators) that are measured in turn. All processes of a party are paused
 * while another party is measured. */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "bench/children.h"
#include "bench/load.h"
#include "bench/options.h"

/* Enough for 32 shards, with two actors each and one learner. */
#define MOST_MEMBERS 128u

/* Load generators of a party: writers, samplers and updaters ("askers"), and those who only look. A bit each. */
enum group { GROUP_WRITE = 1, GROUP_ASK = 2, GROUP_WATCH = 4 };

struct member {
    pid_t pid;
    struct lane *lane;
    unsigned groups; /* that it belongs to: enum group */
    bool server;     /* a further server of the party */
};

struct party {
    pid_t server;
    char service[160];
    struct lane *lane; /* of a raw server */
    struct {
        struct raw_message ingest, request[2], reply[2];
    } frames; /* sizes of the frames that its load generators have sent and received */
    uint64_t first_key, n_keys;
    double memory_per_item; /* resident growth while the table was filled, beyond the payload; NAN: not known */
    struct member members[MOST_MEMBERS];
    uint32_t n_members;
};

/* One measurement: a party with some of its groups at work. */
struct phase {
    struct party *party;
    unsigned groups;
    bool count_server; /* the raw server counts what writers sent */
};

struct figures {
    uint32_t n;
    double rate[2][MOST_REPEATS]; /* items/s: writers, askers */
    double updates[MOST_REPEATS];
    double server_cpu[MOST_REPEATS], client_cpu[MOST_REPEATS]; /* cores */
    double thread_ns[MOST_REPEATS];                            /* CPU time of the server's first thread for one item */
};

/* The memory that senders walk. NULL: an error was printed. */
const uint8_t *run_store(const struct options *options, size_t *size);

/* Starts a broker with a filled table. False: an error was printed. */
bool run_broker(const struct options *options, uint64_t items, struct party *out);
/* The same with `filled` items in a table of `items`; 0: it stays empty. */
bool run_broker_filled(const struct options *options, uint64_t items, uint64_t filled, struct party *out);
/* Starts load generators for it. */
bool run_add_load(const struct options *options, struct party *party, enum work work);
/* Starts a raw server, and clients that use the frame sizes of another party's load generators. */
bool run_raw(const struct options *options, const struct party *like, struct party *out);
bool run_phases(const struct options *options, const struct phase *phases, uint32_t n, struct figures *out);
void run_end(struct party *party);

#endif
