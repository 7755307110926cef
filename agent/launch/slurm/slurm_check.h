/* What cannot work on this cluster, found before anything is submitted. */
#ifndef AGENT_LAUNCH_SLURM_CHECK_H
#define AGENT_LAUNCH_SLURM_CHECK_H

#include "agent/config/config.h"
#include "replay/error.h"

/* A partition, or those of its nodes that are alike. */
struct slurm_partition {
    char name[64];
    bool usual; /* where jobs go that name none */
    bool up;
    uint32_t nodes, cpus; /* cpus: of each node */
    uint64_t memory;      /* bytes of each node */
};
#define SLURM_PARTITIONS 256u
/* Format of sinfo that slurm_parse_partitions reads. */
#define SLURM_PARTITION_FORMAT "%P|%a|%D|%c|%m"
/* Reads lines of sinfo; other lines are skipped. Returns how many there are, at most `most`. */
uint32_t slurm_parse_partitions(const char *text, struct slurm_partition *out, uint32_t most);
/* Reports jobs that do not fit into their partitions. */
void slurm_check_partitions(const struct run_config *config, const struct slurm_partition *partitions, uint32_t n,
                            struct schema_report *report);

/* Asks the cluster for its partitions and checks the jobs against them. */
void slurm_check(const struct run_config *config, struct schema_report *report);
/* Whether a node of the core job's partition sees a folder of this machine: RP_OK: it does; RP_FAILED_PRECONDITION: it does not;
 * another status: no node was free to ask, and err says why. Takes up to ten seconds. */
rp_status slurm_check_shared(const struct run_config *config, const char *folder, rp_error *err);

#endif
