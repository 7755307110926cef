/* Real processes for integration tests: a broker in a folder of its own, and other programs. */
#pragma once

#include <signal.h>
#include <sys/types.h>

#include "tests/support/scoped.h"

struct broker_process {
    pid_t pid; /* 0: not running */
    char dir[64];
    char service[128]; /* endpoint; the same after a restart */
    char more[4096];   /* further keys of its configuration; the same after a restart */
};

/* Starts $RP_BROKER with these tables (the YAML under "tables:", and, if not NULL, further top-level keys) and waits
 * until it listens. Fails the test otherwise. Its endpoints are in its folder, unless `more` begins with "service: ENDPOINT"
 * and names the others, too. */
void broker_process_start(struct broker_process *self, const char *tables, const char *more);
/* Sends the signal and waits until the broker has ended. Returns the status of waitpid. */
int broker_process_stop(struct broker_process *self, int signal_number);
/* Restarts the broker with the same endpoints; tables NULL: the same tables. */
void broker_process_again(struct broker_process *self, const char *tables);
/* Stops the broker if it runs, and removes its folder. */
void broker_process_fini(struct broker_process *self);

/* A broker process and a client of it: what a fixture begins with. Without further members the fixture is struct served. */
#define SERVED                                                                                                         \
    struct broker_process broker;                                                                                      \
    rp_client *client
struct served {
    SERVED;
};
/* Starts a broker (see broker_process_start) and a client, with options or NULL, for a fixture of SERVED. */
void served_start(void *fixture, const char *tables, const char *more, const rp_client_options *options);
void served_stop(void *fixture);

/* Starts a program (argv[0] is its path) with these descriptors as its output and errors. Fails the test if it does not
 * start. */
pid_t process_spawn(const char *const *argv, int out, int err);
/* Runs a program (argv[0] is its path) to its end. Returns its exit code, or 128 + the signal that ended it. Copies its output
 * and errors to out and err (may be NULL), cut to size and terminated. */
int process_run(const char *const *argv, char *out, size_t out_size, char *err, size_t err_size);

/* Returns the value of an environment variable that CTest sets; fails the test if it is missing. */
const char *process_env(const char *name);

/* Returns how many threads this process has. */
uint32_t process_threads(void);
/* Returns the bytes of a line of /proc/PID/status: "VmRSS", "RssAnon". */
uint64_t process_memory(pid_t pid, const char *kind);
