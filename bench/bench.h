/* The harness of replay-bench. A command describes what it compares; the harness starts a broker and load generators (load.c),
 * measures them in turn with plain libzmq that moves the same frames (raw.c) or with another broker, and prints the figures
 * (run.c). The program itself makes no zmq context, so that it can fork. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <zmq.h>

#include "replay.pb-c.h"
#include "replay/error.h"

/* ---- what to measure (main.c) ---- */

#define MOST_REPEATS 101u
/* Items from this size on are "large": senders walk a store as large as the table, and a message has one item. */
#define LARGE_BYTES 4096u

enum work { WORK_INSERT, WORK_SAMPLE, WORK_UPDATE, WORK_BOTH };

struct options {
    bool json, quick, strict, library, ipc, help;
    bool table;    /* one line for each row */
    bool lend;     /* senders lend their frames instead of copying them */
    bool lend_set; /* --frames was given */
    enum work work;
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
    uint32_t group_items; /* libreplay's writers: items of an episode; 0: as many as suit the load */
    uint32_t lease_ms;    /* libreplay's samplers: not 0: items are under lease, and acknowledged */
    bool groups;          /* each of these episodes is a group of the table */
    bool on_demand;       /* libreplay's samplers: nothing is requested ahead */
    double rate;          /* items/s that writers offer; 0: unlimited */
    double heavier;       /* factor of their priorities; 0: 1 */
    const char *only;     /* rows whose name contains it; NULL: all */
    const char *dir;      /* folder for files; NULL: beside the run's other files */
    const char *extra;    /* further lines of the broker's configuration, and of its table's; NULL: none */
    const char *table_extra;
    const char *service; /* endpoint of the broker; NULL: any */
    const char *limiter; /* of the table; NULL: min_size 1 */
    const char *sampler; /* of the table; NULL: prioritized */
};

/* The commands. Each prints its figures; false: an error was printed. */
typedef bool bench_command(struct options *options);
bench_command command_all, command_one; /* compare.c: all rows; options.work, against libzmq or another table */
bench_command command_checkpoint, command_shards, command_params, command_lag, command_agent, command_tree;
/* The rows of command_lag that the options want, which are in command_all, too. Sets *any if there are some. */
bool lag_rows(const struct options *options, bool *any);

/* ---- what processes report, in shared memory: each writes its own tally ---- */

#define RAW_MOST_FRAMES 300u
#define TALLY_ENDPOINT_BYTES 160u

/* The sizes of the frames of a message. */
struct raw_message {
    uint32_t n;
    uint32_t size[RAW_MOST_FRAMES];
};

enum tally_state { TALLY_STARTING, TALLY_READY, TALLY_DONE, TALLY_FAILED };

struct tally {
    _Atomic uint64_t items;                          /* accepted by the broker, or in replies; the raw side: received */
    _Atomic uint64_t updates;                        /* priorities that were changed, where that goes with sampling */
    _Atomic int state;                               /* an enum tally_state; the fields below are written before it */
    char text[256];                                  /* why it failed */
    char endpoint[2][TALLY_ENDPOINT_BYTES];          /* a raw server's: PULL, ROUTER */
    struct raw_message ingest, request[2], reply[2]; /* frames that the broker's client has sent and received */
    uint64_t first_key, n_keys;
    _Atomic uint64_t longest_ns; /* between two replies to a sampler, since it was last set to 0 */
    uint64_t value[4];           /* what a request to the broker gave */
};

static inline void tally_add(struct tally *self, uint64_t items)
{
    atomic_fetch_add_explicit(&self->items, items, memory_order_relaxed);
}
static inline void tally_set_state(struct tally *self, enum tally_state state)
{
    atomic_store_explicit(&self->state, state, memory_order_release);
}
static inline int tally_get_state(struct tally *self)
{
    return atomic_load_explicit(&self->state, memory_order_acquire);
}

/* ---- processes, folders and keys (run.c) ---- */

/* Makes a folder for sockets and files, and the shared tallies. False: an error was printed. */
bool children_init(void);
/* Ends all children and removes the folder. */
void children_fini(void);
/* Returns a new tally, all zero. */
struct tally *children_tally(void);

/* The life of a process. ctx begins with the pointer to its tally: a struct load, or a struct raw_job. */
typedef void child_job(void *ctx);
/* Runs job(ctx) in a process of its own with the broker's malloc settings; it ends with this one. -1: an error was
 * printed. */
pid_t child_start(child_job *job, void *ctx);
/* Runs a job to its end. Returns its tally, a new one. NULL: an error was printed. */
struct tally *child_run(child_job *job, void *ctx, double seconds);
/* Starts a broker with a table `replay` of this many items, and writes its endpoint to service. -1: an error was
 * printed. */
pid_t child_start_broker(const struct options *options, uint64_t items, char *service, size_t size);
/* Ends one process and waits for it. */
void child_end(pid_t pid);
void child_pause(pid_t pid);
/* Sleeps, and checks the children meanwhile. False: a child has ended by itself, or an interrupt came. */
bool children_wait(double seconds);
/* Waits for a state of a tally. False: an error was printed. */
bool children_await(struct tally *tally, enum tally_state state, double seconds);

double children_now(void);
/* Returns the CPU seconds of this thread that one call takes, measured over about this many seconds. */
double time_calls(void (*call)(void *self), void *self, double seconds);

/* Makes a folder for a broker's files: in `parent`, or in the folder of the run. False: an error was printed. */
bool files_folder(const char *parent, char *out, size_t size);
/* Removes the folder with the plain files in it. */
void files_remove(const char *folder);
/* Calls fn with the path of every file in it. */
void files_each(const char *folder, void (*fn)(const char *path, void *ctx), void *ctx);
/* Fills memory with bytes that no codec shrinks. */
void random_bytes(void *out, size_t size);

/* CURVE on all sockets of a run: the broker's, those of its clients, and those of libzmq alone. The keys are made once, before
 * any process starts, and both sides use the same. Until curve_init nothing is encrypted. */
/* Makes the keys in the folder of the run. False: an error was printed. */
bool curve_init(void);
void curve_fini(void);

/* ---- plain libzmq: frames of the same number and sizes, which are received and discarded (raw.c, short on purpose: check it) ---- */

/* Memory that senders walk through again and again. Frames are copied from it, as zmq_send does, or lent to libzmq in
 * place. */
struct raw_store {
    const uint8_t *data;
    size_t size, at;
    bool lend;
};

struct raw_job {
    struct tally *tally;  /* of this process */
    struct tally *server; /* where the server writes its endpoints */
    const char *bind[2];  /* endpoints of PULL and ROUTER */
    int io_threads;
    uint32_t connections;      /* of this client process */
    uint32_t in_flight;        /* requests of each connection */
    uint32_t items;            /* items that a message or reply stands for */
    struct raw_message ingest; /* n == 0: no PULL */
    struct raw_message request[2],
        reply[2]; /* the first pair alone, or the second sent after each reply to the first */
    struct raw_store store;
};

/* Sets the keys of all sockets from here on, which stay the caller's; NULL: none. */
struct key;
void curve_use(const struct key *broker, const struct key *client);
/* Before zmq_bind and zmq_connect. */
void curve_serve(void *socket);
void curve_connect(void *socket);

/* Returns the next frame of a walk through the store. */
void raw_frame(zmq_msg_t *frame, struct raw_store *store, size_t size);

/* Each gets a struct raw_job and runs until its process is ended. raw_client: PUSH if the job has an ingest message, DEALER otherwise. */
child_job raw_server, raw_client;

/* ---- load generators: each function is the life of a process that runs until it is ended, or leaves a sentence in its tally.
 * "Thin" ones encode their frames before the measurement, patch numbers and keys into them, respect the
 * credits, and look at no more of a reply than its status, since the raw side does not decode either. The others use libreplay
 * ---- */

#define LOAD_TABLE "replay"

struct load {
    struct tally *tally;
    const struct options *options;
    const char *service; /* endpoint */
    enum work work;
    uint32_t connections;       /* of this process */
    uint64_t fill;              /* insert: stop after this many items; 0: never */
    uint64_t first_key, n_keys; /* update: keys that are in the table */
    struct raw_store store;
    rp_error err; /* what libreplay says */
};

child_job load_insert;
/* Returns the load generator for this work. */
child_job *load_job_of(enum work work, bool library);

/* For the files of load generators: leaves the sentence in the tally and ends the process. */
void load_fail(struct load *self, const char *format, ...) RP_PRINTF(2, 3) __attribute__((noreturn));
/* The same with what is in err, unless the status is RP_OK; unless there is an object, which is returned. */
void load_ok(struct load *self, rp_status status);
void *load_got(struct load *self, void *object);
/* Return a client of libreplay, a writer of items as the options say, and a sampler. */
struct rp_client *load_client(struct load *self);
struct rp_writer *load_writer(struct load *self, struct rp_client *client);
struct rp_sampler *load_sampler(struct load *self, struct rp_client *client);
/* Writes n items of one step with random priorities. */
struct rng;
void load_items(struct load *self, struct rp_writer *writer, uint32_t n, struct rng *rng);

/* ---- a run: parties (a server with its load generators) that are measured in turn. All processes of a party are paused while
 * another party is measured (run.c) ---- */

/* Enough for 32 shards, with two actors each and one learner. */
#define MOST_MEMBERS 128u

/* Load generators of a party: writers, samplers and updaters ("askers"), and further ones of a command. A bit each. */
enum group { GROUP_WRITE = 1, GROUP_ASK = 2, GROUP_OTHERS = 4 };

struct member {
    pid_t pid;
    struct tally *tally;
    unsigned groups; /* that it belongs to: enum group */
    bool server;     /* a further server of the party */
};

struct party {
    pid_t server;
    char service[160];
    struct tally *tally; /* of a raw server */
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

/* True if --only asks for a row of this name, or was not given. */
bool options_want(const struct options *self, const char *name);
/* Fills in values that follow from the size of the items and were not given. */
void options_settle(struct options *self);
/* Requests under way on each connection of such work. */
uint32_t options_in_flight(const struct options *self, enum work work);
/* Describes a load generator of the party, which the caller goes on with. False: no memory to send from, an error was printed. */
struct party;
bool load_init(struct load *self, const struct options *options, const struct party *party);

/* Starts a broker with `filled` items in a table of `items`. False: an error was printed. */
bool run_broker(const struct options *options, uint64_t items, uint64_t filled, struct party *out);
/* Starts a load generator of the party. `seconds`: until it is ready; 0: the caller waits. */
bool run_add(struct party *party, unsigned groups, child_job *job, void *ctx, double seconds);
/* Starts load generators for it. */
bool run_add_load(const struct options *options, struct party *party, enum work work);
/* Starts a raw server, and clients that use the frame sizes of another party's load generators. */
bool run_raw(const struct options *options, const struct party *like, struct party *out);
bool run_phases(const struct options *options, const struct phase *phases, uint32_t n, struct figures *out);
void run_end(struct party *party);

/* ---- figures as text or as JSON ---- */

struct spread {
    double median, least, most;
};

/* One comparison: ours against another. */
struct row {
    const char *what;                    /* "insert" */
    const char *other;                   /* "raw", or what it is compared with */
    struct spread ours, theirs, ratio;   /* items/s */
    double goal;                         /* 0: none */
    double server_cpu[2], client_cpu[2]; /* cores, medians */
    double thread_ns[2];                 /* CPU time of the server's first thread for one item */
    double memory_per_item;              /* NAN: not measured */
};

/* Over repeats; ratios are taken pair by pair, in the order of measurement. */
struct spread spread_of(const double *values, uint32_t n);
/* Sorts values. Returns the one below which this share of them is. */
double sort_to(double *values, uint32_t n, double share);
struct spread spread_ratio(const double *ours, const double *theirs, uint32_t n);

/* If all was started, measures two phases in turn and prints the row: what writers did in the first against the second, or what askers
 * did. Ends both parties. False: an error was printed. */
bool report_pair(bool started, const struct options *options, struct row row, const struct phase phases[2],
                 bool askers);

/* Prints the row of two measurements: what writers did, or what askers did. */
void report_figures(const struct options *options, struct row row, const struct figures *ours,
                    const struct figures *theirs, bool askers);

/* client: "" for measurements inside this process. */
void report_begin(const struct options *options, const char *command, const char *client);
/* Prints a further figure of the command, with its goal (0: none). */
void report_value(const struct options *options, const char *name, double value, double goal, const char *unit);
/* The same for a figure where less is better: the goal is an upper bound. */
void report_cost(const struct options *options, const char *name, double value, double goal, const char *unit);
/* Returns the number of goals that were missed. */
uint32_t report_end(const struct options *options);
