/* A run's folder, a host and its node agent for tests. The carrier is a shell script, so there is nothing between both sides but pipes;
 * every process that a test starts carries a mark in its environment, and the end of a test waits until none is left. */
#pragma once

#include <sys/types.h>

#include "agent/launch/host/host.h"
#include "proto/base/clock.h"
#include "tests/support/tempdir.h"

#define HOSTBED_MARK "REPLAY_TEST_HOST"

struct hostbed {
    char dir[64];    /* of the test */
    char folder[80]; /* of the run */
    char mark[64];   /* in the environment of all descendants */
    struct guard guard;
    struct host *host;
};

void hostbed_pause(int ms);
/* Tends the host once, with a short pause. */
void hostbed_tend(struct hostbed *f);
/* Tends the host until the condition holds. */
#define hostbed_await(f, condition)                                                                                    \
    do {                                                                                                               \
        int64_t end_ = clock_ns() + WAIT * NS_PER_MS;                                                                  \
        while (!(condition)) {                                                                                         \
            if (clock_ns() > end_)                                                                                     \
                fail_msg("waited in vain for: %s (host %s: %s)", #condition,                                           \
                         (f)->host ? host_state_names[host_info((f)->host)->state] : "-",                              \
                         (f)->host ? host_info((f)->host)->reason : "");                                               \
            if ((f)->host)                                                                                             \
                hostbed_tend(f);                                                                                       \
            else                                                                                                       \
                hostbed_pause(2);                                                                                      \
        }                                                                                                              \
    } while (0)

/* Counts the processes of the test; of these, *one is any. Zombies do not count. */
int hostbed_processes(const struct hostbed *f, pid_t *one);
void hostbed_await_nobody(struct hostbed *f);
/* Starts a process on the host; its log is NAME.log in the test's folder. */
void hostbed_start(struct hostbed *f, struct process *process, const char *name, const char *const *argv);
void hostbed_shell(struct hostbed *f, struct process *process, const char *name, const char *script);
/* Returns its status. */
int hostbed_await_end(struct hostbed *f, struct process *process);
const char *hostbed_log(const struct hostbed *f, const char *name);

void hostbed_set_up(struct hostbed *f);
void hostbed_tear_down(struct hostbed *f);
/* The work folder of a node agent that has not ended; "": none. */
const char *hostbed_work(const struct hostbed *f);
/* Makes the host and opens it. */
void hostbed_make(struct hostbed *f, const char *const *carrier, int64_t lease_ns);
/* The same with $RP_LAUNCH node, until the host is ready. */
void hostbed_connect(struct hostbed *f, int64_t lease_ns);
void hostbed_connect_script(struct hostbed *f, const char *script);
/* Process id of the node agent. */
pid_t hostbed_node(const struct hostbed *f);
