/* What comes before a run: the configuration, the folder, signals, the guard and the plan. */
#pragma once

#include "agent/launch/host/host_pool.h"
#include "agent/launch/launch.h"
#include "agent/launch/plan/plan.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/process.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/run_keys.h"
#include "agent/launch/run_page.h"

struct prepared {
    struct command_context context; /* made of what follows */
    struct run_config config;
    char here[FOLDER_SIZE];     /* folder of the user's file */
    char cwd[FOLDER_SIZE];      /* working directory; "": not known */
    char programs[FOLDER_SIZE]; /* folder of our programs */
    char folder[FOLDER_SIZE];   /* folder of the run; "": none yet */
    char config_path[FOLDER_SIZE + 32];
    int lock; /* -1: not held */
    struct run_keys keys;
    struct interrupts interrupts;
    struct guard guard;
    const struct run_limit *limit; /* of a scheduler; NULL: none */
    struct host_source *source;    /* where hosts come from that come and go; borrowed; NULL: none */
    struct host_pool *hosts;       /* NULL: not opened yet */
    struct run_page *page;         /* NULL: there is none */
    bool planned;                  /* plan and input are valid */
    bool from_cache;
    struct plan plan;
    struct plan_input input;
};

/* Sets all fields to nothing. */
void prepare_init(struct prepared *self);
void prepare_fini(struct prepared *self);

/* Reads and checks a file with the overrides of the command line; prints every mistake. */
rp_status prepare_config(struct prepared *self, const struct launch *launch, const char *file, rp_error *err);
/* Finds the folder of our programs. */
rp_status prepare_programs(struct prepared *self, rp_error *err);
/* Sets up signals and the guard, and finds our programs. Must come before any thread. */
rp_status prepare_process(struct prepared *self, rp_error *err);
/* Makes a new folder, locked, with the log and config.yaml in it. suffix: follows the run's name. */
rp_status prepare_folder(struct prepared *self, const struct launch *launch, const char *suffix, rp_error *err);
/* Makes the keys of the run, if its broker needs them. */
rp_status prepare_keys(struct prepared *self, rp_error *err);
/* Connects to the hosts of the run, which has a folder and keys by now, and waits for them: RP_UNAVAILABLE if there is none for actors
 * or learners, RP_CANCELLED if the user asks to stop. verbose: says on standard error what it waits for. Once they are open, does
 * nothing. */
rp_status prepare_hosts(struct prepared *self, bool verbose, rp_error *err);
/* Begins to show the run in a browser, if the file wants that; prints the address unless the run is quiet. A page that cannot be
 * shown is a warning. */
void prepare_page(struct prepared *self, bool quiet);
/* Writes config.yaml from the present configuration. */
rp_status prepare_write_config(struct prepared *self, rp_error *err);
/* True if a count is auto. */
bool prepare_is_auto(const struct prepared *self);
/* Checks that the weights which actors use exist, and names them by a lasting path: runs/latest soon points to this
 * run. */
rp_status prepare_weights(struct prepared *self, rp_error *err);
/* Returns the columns of the terminal at standard output; 100 without one. */
uint32_t launch_columns(void);
/* Writes profile.json and profile.html into the folder. */
rp_status profile_write(const struct plan_input *input, const char *folder, rp_error *err);
/* Writes plan.json, profile.json and profile.html into the folder. */
rp_status prepare_save_plan(const struct prepared *self, rp_error *err);
/* Goes to the folder in which a run was begun: relative paths of its file start there. False: it is not known, or gone, which is said. */
bool prepare_go_back(const char *cwd);
/* Opens the hosts, takes curves from the cache or measures them, and makes the plan; where the file says auto, the counts become the
 * plan's. cached: uses only the cache, and without it there is no plan. Progress goes to standard error if that is a
 * terminal or `verbose` is set. */
rp_status prepare_plan(struct prepared *self, bool again, bool cached, bool verbose, rp_error *err);

/* Where the file says auto, the number of shards becomes the plan's; without a plan it is 1. */
void prepare_shards(struct prepared *self);
