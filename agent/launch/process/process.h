/* The process room: the processes of a run and what they do. It owns starting (spawn.h), watching and ending them, the guard
 * that kills what they leave behind (guard.h), the command lines of a run's processes (command.h), signals (interrupts.h), what the machine
 * has and how busy it is (machine.h), what a run does (observe.h), its status (status.h) and its folder (run_folder.h). It may use the
 * configuration and the client library.
 *
 * This header: one child, a command with a log file and a process group of its own. The child dies with the launcher
 * in any case: the kernel kills the child itself (PR_SET_PDEATHSIG), and the guard kills what the child has started.
 * One thread starts and awaits all children, and must live as long as they do: the kernel takes the end of that
 * thread for the end of the launcher. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/launch/process/guard.h"
#include "replay/error.h"

struct process_options {
    const char *name;               /* "actor-3" */
    const char *const *argv;        /* argv[0] is searched in PATH if it has no slash */
    const char *const *environment; /* "NAME=value" beyond the launcher's own; NULL-terminated; may be NULL */
    const char *log;                /* file to which its output is appended; NULL: its standard streams are given */
    const int *streams;             /* those three, as in struct spawn */
    struct guard *guard;            /* may be NULL */
    struct process_place *place;    /* where it runs; NULL: on this machine, as a child of the launcher */
};

struct process {
    char name[32];
    char log[512];
    bool running;
    pid_t pid;         /* where it runs; 0: does not run, or is not known yet */
    int64_t log_start; /* byte of the log at which this start begins */
    int64_t started_ns;
    int64_t asked_ns; /* when it was asked to end; 0: never */
    bool killed;      /* by process_kill */
    bool exited;      /* in its place, which has yet to deliver its last output and files */
    struct guard *guard;
    struct process_place *place; /* NULL: this machine */
    uint32_t number;             /* of this start, in its place */
};

/* What a process with all its threads uses, and the processes that it has started (its group). */
struct process_usage {
    int64_t cpu_ns;  /* since its start */
    int64_t main_ns; /* of the one main thread among its processes that has used most: a broker's core thread */
    uint64_t memory; /* bytes without those of shared files */
    bool stopped;    /* by SIGSTOP */
};

/* Another machine that runs processes (agent/launch/host). Its functions never wait. The log of a process is a file of this
 * machine in any case: a place appends to it what the process prints there. */
struct process_place {
    /* Begins the start and sets self->number. A program that cannot be executed ends at once with status 127 << 8, and its log
     * says why. */
    rp_status (*start)(struct process_place *place, struct process *self, const struct process_options *options,
                       rp_error *err);
    /* See process_ended. A place that is lost ends all its processes with PROCESS_LOST. Sets self->pid
     * when it is known, and self->exited. */
    bool (*ended)(struct process_place *place, struct process *self, int *status);
    /* Asks the process to end, or kills it. */
    void (*end)(struct process_place *place, const struct process *self, bool kill);
    bool (*usage)(struct process_place *place, const struct process *self, struct process_usage *out);
};
/* The status of a process whose place is lost: one that waitpid never gives. */
#define PROCESS_LOST (1 << 20)

/* Starts the command. One that cannot be executed fails here: "could not start ./x: No such file or directory". */
rp_status process_start(struct process *self, const struct process_options *options, int64_t now_ns, rp_error *err);
/* Returns true once, when the process has ended; *status is that of waitpid. Then the rest of its group is killed. */
bool process_ended(struct process *self, int *status);
/* Sends SIGTERM to the process alone; a second call does nothing. */
void process_ask(struct process *self, int64_t now_ns);
/* Sends SIGKILL to its whole group. */
void process_kill(struct process *self);
/* Copies the end of the output since the start: at most `lines` lines that fit, separated by "\n". Valid UTF-8 without
 * control characters; empty lines are left out, and of a very long line only the two ends are kept. Gives out. */
const char *process_tail(const struct process *self, char *out, size_t size, uint32_t lines);
/* Empties the log if it has more than `most` bytes. Returns true if it had. */
bool process_cut_log(struct process *self, int64_t most);

/* "exit status 1", "killed by SIGSEGV (Segmentation fault)". Gives out. */
const char *process_describe(int status, char *out, size_t size);

/* Raises the limit of open files as far as this user may: each process and each host takes some. */
void process_raise_files(void);

/* False: the usage is not known. */
bool process_usage(const struct process *self, struct process_usage *out);

/* A process that a process of this machine has started itself. */
struct process_child {
    pid_t pid;
    int64_t cpu_ns; /* since its start */
    bool stopped;   /* by SIGSTOP */
};
/* Returns how many of them out has, at most `most`. */
uint32_t process_children(const struct process *self, struct process_child *out, uint32_t most);

/* ---- a program that answers on its standard output ---- */

/* Started as a child with a time limit. For programs of Slurm, the script that packs our programs, and Python that describes an
 * environment. Zero-initialised. */
struct call {
    struct process process; /* running: the call is under way */
    int64_t limit_ns;       /* the time that it may take */
    int streams[3];         /* files in memory for what it prints */
    char *out, *err;        /* what it printed, cut after 1 MiB; NULL before its end */
    bool late;              /* it was killed at its deadline */
    int status;             /* of waitpid, after its end */
};

/* Starts the program, which has limit_ns. environment: "NAME=value" beyond our own, or NULL. Frees what an earlier call has left. */
rp_status call_start(struct call *self, const char *const *argv, const char *const *environment, int64_t limit_ns,
                     rp_error *err);
/* Never waits. True once, when the call has ended; what it printed stays until the next start. */
bool call_ended(struct call *self);
/* Waits for the end. True: the program ended by itself with status 0. */
bool call_await(struct call *self);
/* True after the end if the program ended by itself with status 0. */
bool call_succeeded(const struct call *self);
/* Kills a call that is under way, and frees everything. */
void call_fini(struct call *self);
