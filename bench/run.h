/* A run: parties (a server with its load generators) that are measured in turn. All processes of a party stand still
 * while another is measured. */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "bench/children.h"
#include "bench/load.h"
#include "bench/options.h"

#define MOST_MEMBERS 64u

/* Load generators of a party: writers, or those that ask. A bit each. */
enum group { GROUP_WRITE = 1, GROUP_ASK = 2 };

struct member {
    pid_t pid;
    struct lane *lane;
    enum group group;
};

struct party {
    pid_t server;
    char service[160];
    struct lane *lane; /* of a raw server */
    struct {
        struct raw_message ingest, request[2], reply[2];
    } frames; /* that its load generators have sent and received */
    uint64_t first_key, n_keys;
    double memory_per_item; /* resident growth while the table was filled, beyond the payload; NAN: not known */
    struct member members[MOST_MEMBERS];
    uint32_t n_members;
};

/* One thing to be measured: a party with some of its groups at work. */
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

/* The memory that senders walk. NULL: said why. */
const uint8_t *run_store(const struct options *options, size_t *size);

/* A broker with a filled table. False: said why. */
bool run_broker(const struct options *options, uint64_t items, struct party *out);
/* Load generators for it. */
bool run_add_load(const struct options *options, struct party *party, enum work work);
/* A raw server and clients for the frames that the load generators of another party have shown. */
bool run_raw(const struct options *options, const struct party *like, struct party *out);
bool run_phases(const struct options *options, const struct phase *phases, uint32_t n, struct figures *out);
void run_end(struct party *party);

#endif
