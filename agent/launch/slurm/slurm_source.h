/* The tasks of the actor array as hosts of a run: a host_source that asks squeue every two seconds. A task that runs is a host,
 * reached by an srun step inside its allocation; one that was preempted, has failed or waits is none. The source submits the
 * array, keeps it as large as the run wants, and cancels it at the end. No call waits for Slurm except new and destroy. */
#pragma once

#include "agent/config/config.h"
#include "agent/launch/host/host_pool.h"

struct slurm_source_options {
    const struct run_config *config;
    const char *folder;   /* of the run */
    const char *programs; /* folder of replay-launch, the same on all nodes */
};

struct slurm_source;
/* Submits the array, or takes over that of an earlier leg if it is whole. The number of the core job comes from slurm.json. NULL:
 * err says what is wrong, such as a partition that does not exist. */
struct slurm_source *slurm_source_new(const struct slurm_source_options *options, rp_error *err);
/* Cancels the array. */
void slurm_source_destroy(struct slurm_source **self);
/* Never NULL; owned by the source. */
struct host_source *slurm_source_hosts(struct slurm_source *self);
