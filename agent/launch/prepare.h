/* What comes before a run: the configuration, the folder, signals and guard, the plan. */
#ifndef AGENT_LAUNCH_PREPARE_H
#define AGENT_LAUNCH_PREPARE_H

#include "agent/launch/launch.h"
#include "agent/launch/observe/run_folder.h"
#include "agent/launch/plan/plan.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/process.h"

struct prepared {
    struct run_config config;
    char here[FOLDER_SIZE];     /* folder of the user's file */
    char cwd[FOLDER_SIZE];      /* working directory; "": not known */
    char programs[FOLDER_SIZE]; /* folder of our programs */
    char folder[FOLDER_SIZE];   /* of the run; "": none yet */
    char config_path[FOLDER_SIZE + 32];
    int lock; /* -1: not held */
    struct interrupts interrupts;
    struct guard guard;
    bool planned; /* plan and input are there */
    bool from_cache;
    struct plan plan;
    struct plan_input input;
};

/* Zeroes it. */
void prepare_init(struct prepared *self);
void prepare_fini(struct prepared *self);

/* Reads and checks a file, with what the command line overrides; prints every mistake. -1: it is right; else the exit status. */
int prepare_config(struct prepared *self, const struct launch *launch, const char *file);
/* Where our programs are. */
rp_status prepare_programs(struct prepared *self, rp_error *err);
/* Signals, the guard, and where our programs are. Before any thread. */
rp_status prepare_process(struct prepared *self, rp_error *err);
/* A new folder, locked, with the log and config.yaml in it. suffix: after the run's name. */
rp_status prepare_folder(struct prepared *self, const struct launch *launch, const char *suffix, rp_error *err);
/* config.yaml as the configuration is now. */
rp_status prepare_write_config(struct prepared *self, rp_error *err);
/* Whether a count is left to us. */
bool prepare_is_auto(const struct prepared *self);
/* The weights that actors are to act by must be there; they are named by a path that lasts, for runs/latest soon is this run. */
rp_status prepare_weights(struct prepared *self, rp_error *err);
/* verb_plan.c: for people, as wide as the terminal. */
void launch_print_plan(const struct plan *plan, const struct plan_input *input);
/* Curves from the cache or measured now, and the plan; where the file says auto, the counts become the plan's. cached: only
 * from the cache, and without it there is no plan. progress goes to standard error, if it is a terminal or `verbose`. */
rp_status prepare_plan(struct prepared *self, bool again, bool cached, bool verbose, rp_error *err);

#endif
