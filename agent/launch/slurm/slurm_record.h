/* What a run's folder remembers of its jobs: slurm.json. The login node writes it when it submits the core job; the launcher in
 * the core job adds the array. */
#ifndef AGENT_LAUNCH_SLURM_RECORD_H
#define AGENT_LAUNCH_SLURM_RECORD_H

#include "agent/launch/observe/run_folder.h"

#define SLURM_RECORD "slurm.json"
#define SLURM_CORE_SCRIPT "core.sbatch"
#define SLURM_ACTORS_SCRIPT "actors.sbatch"
#define SLURM_CORE_LOG "logs/slurm-core.log"

struct slurm_record {
    uint64_t core;            /* number of the core job; 0: none */
    uint64_t array;           /* number of the array; 0: none yet */
    uint32_t tasks;           /* of the array */
    char script[FOLDER_SIZE]; /* of the array; "": actors.sbatch in the folder */
};

/* False: the folder has none, so the run is not one of Slurm. */
bool slurm_record_read(const char *folder, struct slurm_record *out);
rp_status slurm_record_write(const char *folder, const struct slurm_record *self, rp_error *err);

#endif
