/* The host room: other machines of a run. It owns one connection per machine to a node agent (replay-launch node, node.h), which
 * starts, guards and reports processes there; what is written there comes back into the run's folder here. It also owns how
 * the agent gets there (carrier.h) and the list of all hosts of a run (host_pool.h). It may use the process room and the
 * configuration.
 *
 * This header: one host. The carrier is a child of the launcher (ssh, srun, or a command of the user's) whose standard input and
 * output are the connection: lines of text (host_line.h). Everything here is called from the launcher's one thread and never
 * waits. The node agent ends its processes when the connection ends or when it hears nothing for a while, so a dead launcher,
 * a dead carrier and a dead network all take the processes along. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/launch/process/process.h"
#include "replay/error.h"

#define HOST_NAME 64u
#define HOST_PATH 512u

enum host_state {
    HOST_ABSENT,     /* there is no machine now: not allocated, or closed */
    HOST_CONNECTING, /* the carrier runs, the agent has not answered yet */
    HOST_READY,
    HOST_LOST, /* the connection has ended or is silent; host_open tries again */
    HOST_STATES
};
extern const char *const host_state_names[HOST_STATES];

/* What a node agent says about its machine when it begins. */
struct host_facts {
    char hostname[HOST_NAME];
    char model[128];          /* of the processor, with the architecture: machines of one model are of one kind */
    double cores, memory;     /* that processes may use there */
    char work[HOST_PATH];     /* folder of this run there: config.yaml, keys, reports, weights */
    char programs[HOST_PATH]; /* folder of our programs there */
    char here
        [HOST_PATH]; /* folder of the user's files there: the same path as at home, or one with the files that were sent */
    char address[HOST_NAME]; /* of the launcher's machine, as that machine sees it; "": not known */
    bool python;             /* the package replaybus lies beside the programs */
};

struct host_options {
    const char *name;           /* "cpu3" */
    const char *const *carrier; /* command whose standard streams lead to a node agent; NULL-terminated; copied */
    const char *folder;         /* of the run, at home */
    const char *here;           /* of the user's file, at home */
    struct guard *guard;
    int64_t lease_ns; /* without a word for this long each side gives the other up; at least some seconds; 0: 15 s */
};

/* The answer to the question whether a TCP connection from there to an endpoint of home works. */
struct host_probe {
    bool done, ok;
    int64_t ns;     /* that the connection took */
    char text[256]; /* why it failed */
};

/* What is known of a host. */
struct host_info {
    char name[HOST_NAME];
    enum host_state state;
    /* Why the host was lost, until it is ready again: "ssh: connect to host cpu3 port 22: Connection refused". */
    char reason[512];
    uint32_t times;          /* how often it was ready so far */
    bool sent;               /* our programs were not there: this connection sends them, or has done so */
    struct host_facts facts; /* since the host was ready for the first time */
    struct host_probe probe; /* the answer to host_probe */
    double cpu;              /* cores in use there by all programs, lately; 0: not known */
    int64_t round_trip_ns;   /* that a probe measured; 0: not known */
    int64_t moved_ns;        /* when the newest piece of a file or of output came from there; 0: none has come */
    bool busy;               /* much was to be read there at the last look: the next one should come soon */
};

struct host;
struct host *host_new(const struct host_options *options);
/* Closes the connection: the agent ends what still runs there. Waits a moment for the carrier's end. */
void host_destroy(struct host **self);
const struct host_info *host_info(const struct host *self);

/* Starts the carrier, unless it runs. A failure makes the host lost, with a reason. */
void host_open(struct host *self, int64_t now_ns);
/* Ends the connection; the host is absent then. */
void host_close(struct host *self);
/* Ends the connection, and uses another carrier for the next one. False: this is the carrier, and nothing changes. */
bool host_set_carrier(struct host *self, const char *const *carrier);
/* Reads and writes what there is: output into logs, files into the folder, ends of processes, the lease. */
void host_tend(struct host *self, int64_t now_ns);

/* Sends a file of home into the work folder there, if the host is ready. name: relative, "keys/actor.key"; keeps the mode. A file
 * that is gone is not sent (RP_NOT_FOUND). */
rp_status host_send_file(struct host *self, const char *path, const char *name, rp_error *err);
/* Sends all files NAME.* of the run's folder that are not being written; failed, or NULL, hears of those that fail. */
typedef void host_unsent(void *context, const char *host, const char *file, const rp_error *err);
void host_send_files(struct host *self, const char *name, host_unsent *failed, void *context);
/* Asks whether a TCP connection from there to an endpoint of home works ("tcp://10.0.0.1:7000"). The answer comes later:
 * host_info()->probe.done. */
rp_status host_probe(struct host *self, const char *endpoint, rp_error *err);

/* The place of processes there (process.h). The host must be ready when a process is started. */
struct process_place *host_place(struct host *self);
