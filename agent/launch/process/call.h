/* A program that answers on its standard output: started as a child with a time limit, read without waiting. For programs of Slurm, the
 * script that packs our programs, and Python that describes an environment. */
#ifndef AGENT_LAUNCH_CALL_H
#define AGENT_LAUNCH_CALL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "replay/error.h"

/* One stream of the child. */
struct call_stream {
    int fd;
    char *text; /* what has come, NUL-terminated, cut after 1 MiB; NULL: nothing yet */
    size_t size;
};

/* Zero-initialised. */
struct call {
    pid_t pid;                     /* 0: no call is under way */
    int64_t limit_ns, deadline_ns; /* the time that it may take; the end of that time */
    struct call_stream out, err;
    bool late;  /* it was killed at its deadline */
    int status; /* of waitpid, after its end */
};

/* Starts the program, which has limit_ns. environment: "NAME=value" beyond our own, or NULL. Frees what an earlier call has left. */
rp_status call_start(struct call *self, const char *const *argv, const char *const *environment, int64_t limit_ns,
                     rp_error *err);
/* Reads what there is. True once, when the call has ended; what it printed stays until the next start. */
bool call_ended(struct call *self);
/* Waits for the end. True: the program ended by itself with status 0. */
bool call_await(struct call *self);
/* True after the end if the program ended by itself with status 0. */
bool call_succeeded(const struct call *self);
/* What has come so far, "" if nothing has. Borrowed. */
const char *call_text(const struct call_stream *stream);
/* Kills a call that is under way, and frees everything. */
void call_fini(struct call *self);

#endif
