/* A run's folder, and what the launcher keeps in it:
 *
 *   config.yaml      the whole configuration, with the counts that were chosen
 *   launch.json      struct folder_state: for resume, status, logs and stop
 *   launch.lock      locked as long as a launcher works on the run
 *   status.json      the newest status, written anew every second
 *   metrics.jsonl    a status a second, thinned with age
 *   plan.json, profile.json, profile.html, report.json, report.html, report.txt
 *   logs/NAME.log    what each process printed
 *
 * The reports and the weights of the run's processes lie beside them (docs/LAUNCH.md). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "agent/launch/process/interrupts.h"
#include "replay/error.h"

#define FOLDER_SIZE 512u
#define FOLDER_NODE 256u
#define FOLDER_CONFIG "config.yaml"
#define FOLDER_STATE "launch.json"
#define FOLDER_LOCK "launch.lock"
#define FOLDER_STATUS "status.json"
#define FOLDER_METRICS "metrics.jsonl"
#define FOLDER_PAGE "page" /* address of the page, with its token */
#define FOLDER_RUNS "runs" /* in which each run gets a folder */
#define FOLDER_LATEST "latest"
/* The most actors and learners that a run may have: a damaged file cannot ask for more. */
#define FOLDER_MAX_COUNT 4096u

/* What a later launcher, or another terminal, has to know about a run. */
struct folder_state {
    int32_t pid; /* of the launcher */
    uint32_t legs;
    double elapsed_s; /* time of all legs so far */
    uint64_t steps, learner_steps;
    uint32_t actors, learners;
    bool auto_actors;       /* the waits may change the number of actors */
    bool by_hand;           /* somebody has set that number */
    bool done;              /* a stop condition was met: there is nothing to resume */
    char node[FOLDER_NODE]; /* hostname of the launcher's machine; "": not known */
    char service[256];      /* as that machine reaches it */
    char here[FOLDER_SIZE]; /* folder of the user's file */
    char cwd[FOLDER_SIZE];  /* folder where the run was begun: relative paths of the file start there; "": not known */
    char command[1024];     /* the command line that began the run */
};

/* Names the folder of what a user's runs have in common: $XDG_CACHE_HOME/replay, or ~/.cache/replay. */
rp_status run_folder_cache(char out[FOLDER_SIZE], rp_error *err);
/* Makes a folder and all folders above it. mode: of the last one; a folder that exists keeps its own. */
rp_status run_folder_make(const char *path, mode_t mode, rp_error *err);
/* Makes the folder of a new run: `given`, or RUNS/NAME-TIME, which RUNS/latest then points to. Refuses a folder that
 * already holds a run. */
rp_status run_folder_create(const char *runs, const char *name, const char *given, char out[FOLDER_SIZE],
                            rp_error *err);
/* True if there is a run in the folder. */
bool run_folder_holds(const char *folder);
/* Makes RUNS/latest point to the folder, if it is below RUNS. */
void run_folder_point_latest(const char *runs, const char *folder);
/* Finds the folder of a run by what a user wrote: a path, a name below RUNS, or NULL for the latest. */
rp_status run_folder_find(const char *runs, const char *given, char out[FOLDER_SIZE], rp_error *err);
/* The same for those who look at a run or stop it: of the runs that live, if the latest has ended. */
rp_status run_folder_find_living(const char *runs, const char *given, char out[FOLDER_SIZE], rp_error *err);

/* Locks the run until the process ends. RP_FAILED_PRECONDITION: another launcher works on this run; RP_IO: locks
 * do not work in this folder. */
rp_status run_folder_lock(const char *folder, int *lock, rp_error *err);
/* True if a launcher works on the run now. */
bool run_folder_locked(const char *folder);
/* Locks a file of a folder as flock does. Returns a descriptor that holds the lock; -1: errno says why not (EWOULDBLOCK: another
 * process holds it). */
int run_folder_lock_file(const char *folder, const char *file, mode_t mode, int how);
/* True if the status is so new that a launcher must have written it: locks do not reach from one machine to another on all file
 * systems. */
bool run_folder_is_fresh(const char *folder);

rp_status run_folder_write_state(const char *folder, const struct folder_state *state, rp_error *err);
rp_status run_folder_read_state(const char *folder, struct folder_state *out, rp_error *err);
/* Writes the hostname of this machine to out. */
void run_folder_this_node(char out[FOLDER_NODE]);
/* True if the run's launcher works, or has worked, on another machine. */
bool run_folder_is_elsewhere(const struct folder_state *state);

/* True if a launcher of this machine works on the run, whose state is read then. */
bool run_folder_works_here(const char *folder, struct folder_state *state);

/* Writes a file whole or not at all. */
rp_status run_folder_write(const char *folder, const char *file, const char *text, rp_error *err);
/* The same for a struct as JSON. */
struct json_row;
rp_status run_folder_write_rows(const char *folder, const char *file, const struct json_row *rows, const void *from,
                                rp_error *err);
/* The same for a file that only its owner may read. */
rp_status run_folder_write_secret(const char *folder, const char *file, const char *text, rp_error *err);
void run_folder_remove(const char *folder, const char *file);
/* Returns the contents of a file: free(). NULL: there is none, or it is too large. */
char *run_folder_read(const char *folder, const char *file);
/* Writes folder/file to out, cut to size. Gives out. */
const char *run_folder_path(char *out, size_t size, const char *folder, const char *file);

/* ---- who asks a run to end: a signal cannot say that, so whoever sends one leaves a note in the run's folder first ---- */

#define STOP_ASKER 256u

/* Leaves a note with what asks for the end: "replay-launch stop", "the page". A folder that cannot be written costs only the note. */
void stop_note_leave(const char *folder, const char *who);
/* Removes a note that nobody took. */
void stop_note_drop(const char *folder);
/* Takes the note, or describes the signal if there is none. Gives out. */
const char *stop_asker(const char *folder, const struct interrupts *interrupts, char *out, size_t size);

/* Asks the launcher of a run on this machine to end it, on behalf of `who`: SIGTERM and a note. Gives its pid. */
rp_status run_folder_stop(const char *folder, const char *who, int32_t *pid, rp_error *err);

/* ---- what others ask of a run that goes on: a line in one file of the run's folder, and the answer in another ---- */

/* Asks, and waits for the launcher's answer, for at most so many seconds: free(). It begins with RUN_REQUEST_OK, or says what is wrong.
 * NULL with err set. */
#define RUN_REQUEST_OK "ok "
char *run_request_ask(const char *folder, const char *request, int seconds, rp_error *err);
/* Returns a request that waits for an answer: free(). NULL: there is none. */
char *run_request_next(const char *folder);
void run_request_answer(const char *folder, const char *answer);
