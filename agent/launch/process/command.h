/* The command lines of a run's processes, ours or the user's own. */
#pragma once

#include "agent/config/config.h"
#include "agent/launch/process/process.h"
#include "agent/launch/process/run_keys.h"
#include "proto/base/need.h"
#include "proto/base/text.h"
#include "replay/error.h"

enum role { ROLE_BROKER, ROLE_LEARNER, ROLE_ACTOR, ROLE_EVALUATOR, ROLES };
extern const char *const role_names[ROLES]; /* "broker", "learner", ... */

/* Where a broker listens; zero-initialised. */
struct endpoints {
    char service[256], ingest[256], events[256];
};
/* Reads the file that replay-broker --endpoints-file wrote; endpoints on all interfaces become local ones. */
rp_status endpoints_read(const char *path, struct endpoints *out, rp_error *err);

/* What the processes of a run have in common, on one machine. */
struct command_context {
    const struct run_config *config;
    const char *programs;    /* folder of replay-broker, replay-actor and replay-learner */
    const char *config_path; /* the resolved file, which our programs read */
    const char *here;        /* folder of the user's file, for {here} */
    const char *folder;      /* folder of the run, for logs and weights; "": none */
    const char *endpoints_file;
    /* For {service} and the like; for the broker: to bind again after a restart. NULL: any. */
    const struct endpoints *endpoints;
    const struct run_keys *keys;  /* of the run; NULL: none */
    struct guard *guard;          /* of the processes; may be NULL */
    struct process_place *place;  /* of the processes; NULL: this machine */
    uint32_t actors, learners;    /* how many there are */
    const char *const *overrides; /* more "a.b=c" for our programs, NULL-terminated; may be NULL */
    bool resume;                  /* learners continue from their saved state if there is one */
    bool elsewhere, python;       /* on another machine; there, the package replaybus lies beside the programs */
};

/* Where the broker of a run keeps the folder of its configuration: a plain
 * relative path is in the run's own folder; "/...", "./..." and "../..." are meant as they stand. Gives out. */
const char *command_keep(const struct command_context *context, const char *dir, char *out, size_t size);

/* The command line of one process; NULL-terminated, words_free. Our own programs get "-c config_path --set ...":
 * counts, folder, stop.time=0s (the launcher keeps the time), and the overrides. The user's (actors.command,
 * learners.command, evaluator.command) get their placeholders filled: {service} {ingest} {events} {index} {count} {seed} {folder}
 * {config} {here} {table} {name}; "{{" is "{". {seed} is that of the run plus the index, {count} how many of its
 * role there are, {name} the run's. NULL: err says what is wrong. */
char **command_build(const struct command_context *context, enum role role, uint32_t index, rp_error *err);
/* The environment of every child: REPLAY_ENDPOINT, REPLAY_INDEX, REPLAY_FOLDER, REPLAY_CONFIG, REPLAY_COUNT,
 * REPLAY_SEED, REPLAY_TABLE, OPENBLAS_NUM_THREADS=1, REPLAY_LOG_JSON=1 if the launcher's own log is JSON, REPLAY_KEY_FILE
 * (empty without keys). For children in Python also
 * PYTHONPATH, see command_python_path. */
char **command_environment(const struct command_context *context, enum role role, uint32_t index);
/* Names a process of the run: "broker", "actor-3". Gives out. */
#define COMMAND_NAME 32u
const char *command_name(enum role role, uint32_t index, char out[COMMAND_NAME]);
/* Starts one process of the run with that name, command line and environment, in the context's place. logs: folder of its log. */
rp_status command_start(const struct command_context *context, enum role role, uint32_t index, const char *logs,
                        struct process *process, int64_t now_ns, rp_error *err);
/* Measures saved weights once: replay-actor, or the user's evaluator, with --weights FILE --episodes N, which writes no
 * file and prints "mean return of N episodes: R". */
struct command_evaluation {
    const char *weights;
    const char *episodes; /* NULL: evaluator.episodes of the run */
    bool show, json;      /* shows the episodes; prints JSON */
};
char **command_evaluate(const struct command_context *context, const struct command_evaluation *evaluation,
                        rp_error *err);
/* "PYTHONPATH=...": the folder of the user's file, where its modules are; the package replaybus beside our programs, if
 * it is there; and the path that the launcher has. Given to the caller. */
char *command_python_path(const char *programs, const char *here);
/* Asks a Python environment for its spec: python3 -m replaybus.describe, which prints lines "key: value". */
char **command_describe(const struct env_config *config);

/* ---- more words of a list (need.h) ---- */

/* Adds a blank and a word in quotes for the shell. */
void shell_add(struct text *out, const char *word);
/* Adds "KEY=PATH", an override, whose value is YAML: quotes keep an unusual path from being read as something else. */
void words_add_path(struct words *self, const char *key, const char *path);
