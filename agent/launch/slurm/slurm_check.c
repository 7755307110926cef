#include "agent/launch/slurm/slurm_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/slurm/slurm_call.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define MIB (UINT64_C(1) << 20)
#define SHARED_NS (15 * NS_PER_S)

/* ---- the partitions ---- */

/* A number that may end with "+": nodes that are not alike have at least so much. */
static bool read_number(const char *text, uint64_t *out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return false;
    *out = strtoull(text, &end, 10);
    return *end == '\0' || (*end == '+' && end[1] == '\0');
}

static bool read_partition(char *line, struct slurm_partition *out)
{
    char *fields[5];
    uint64_t nodes, cpus, memory;
    *out = (struct slurm_partition){0};
    for (int i = 0; i < 5; i++)
        if (!(fields[i] = strsep(&line, "|")))
            return false;
    if (!read_number(fields[2], &nodes) || !read_number(fields[3], &cpus) || !read_number(fields[4], &memory))
        return false;
    size_t length = strlen(fields[0]);
    out->usual = length > 0 && fields[0][length - 1] == '*';
    snprintf(out->name, sizeof out->name, "%.*s", (int)(length - out->usual), fields[0]);
    out->up = strcmp(fields[1], "up") == 0;
    out->nodes = nodes < UINT32_MAX ? (uint32_t)nodes : UINT32_MAX;
    out->cpus = cpus < UINT32_MAX ? (uint32_t)cpus : UINT32_MAX;
    out->memory = memory < UINT64_MAX / MIB ? memory * MIB : UINT64_MAX;
    return out->name[0] != '\0';
}

uint32_t slurm_parse_partitions(const char *text, struct slurm_partition *out, uint32_t most)
{
    uint32_t n = 0;
    while (text && *text && n < most) {
        char line[512];
        size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(length < sizeof line ? length : sizeof line - 1), text);
        text += length + (text[length] == '\n');
        n += read_partition(line, &out[n]);
    }
    return n;
}

/* ---- checks ---- */

struct cluster {
    const struct slurm_partition *list;
    uint32_t n;
};

/* Adds up what the rows of one partition offer. False: there is no such partition. */
static bool find_partition(const struct cluster *cluster, const char *name, struct slurm_partition *out)
{
    bool found = false;
    *out = (struct slurm_partition){0};
    for (uint32_t i = 0; i < cluster->n; i++) {
        const struct slurm_partition *row = &cluster->list[i];
        if (name[0] ? strcmp(row->name, name) != 0 : !row->usual)
            continue;
        found = true;
        snprintf(out->name, sizeof out->name, "%s", row->name);
        out->up |= row->up;
        out->nodes += row->nodes;
        out->cpus = row->cpus > out->cpus ? row->cpus : out->cpus;
        out->memory = row->memory > out->memory ? row->memory : out->memory;
    }
    return found;
}

static const char *name_all(const struct cluster *cluster, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < cluster->n && used < size; i++) {
        bool again = i > 0 && strcmp(cluster->list[i].name, cluster->list[i - 1].name) == 0;
        if (!again)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "", cluster->list[i].name);
    }
    return out;
}

/* Gives the partition by its name, or reports that there is none. path: the key with the name. */
static bool check_name(const struct cluster *cluster, const char *name, const char *path, struct schema_report *report,
                       struct slurm_partition *out)
{
    char all[256];
    bool found = find_partition(cluster, name, out);
    if (!found && name[0])
        schema_problem(report, path, "the cluster has no partition '%s'; there are: %s", name,
                       name_all(cluster, all, sizeof all));
    else if (!found)
        schema_problem(report, path, "the cluster has no default partition: name one of these: %s",
                       name_all(cluster, all, sizeof all));
    else if (!out->up)
        schema_problem(report, path, "partition '%s' is down", out->name);
    return found && out->up;
}

static void check_cores(const struct slurm_partition *partition, int64_t cores, const char *path,
                        struct schema_report *report)
{
    if (cores > 0 && (uint64_t)cores > partition->cpus)
        schema_problem(report, path, "is %" PRId64 ", but the largest node of partition '%s' has %u processors", cores,
                       partition->name, partition->cpus);
}

void slurm_check_partitions(const struct run_config *config, const struct slurm_partition *partitions, uint32_t n,
                            struct schema_report *report)
{
    const struct slurm_section *slurm = &config->launch.slurm;
    const struct cluster cluster = {partitions, n};
    struct slurm_partition found;
    if (check_name(&cluster, slurm->partition, "launch.slurm.partition", report, &found)) {
        check_cores(&found, slurm->cores, "launch.slurm.cores", report);
        if (slurm->memory > 0 && (uint64_t)slurm->memory > found.memory)
            schema_problem(report, "launch.slurm.memory",
                           "is more than the %" PRIu64 " MiB of a node of partition '%s'", found.memory / MIB,
                           found.name);
    }
    if (!config->actors.on)
        return;
    const char *actors = slurm->actors_partition[0] ? slurm->actors_partition : slurm->partition;
    const char *path = slurm->actors_partition[0] ? "launch.slurm.actors.partition" : "launch.slurm.partition";
    bool same = strcmp(actors, slurm->partition) == 0;
    bool ok = same ? find_partition(&cluster, actors, &found) && found.up
                   : check_name(&cluster, actors, path, report, &found);
    if (ok)
        check_cores(&found, slurm->actors_per_task, "launch.slurm.actors.per_task", report);
}

void slurm_check(const struct run_config *config, struct schema_report *report)
{
    char *text = NULL;
    rp_error err = {0};
    struct slurm_partition *partitions = calloc(SLURM_PARTITIONS, sizeof *partitions);
    if (!partitions)
        return;
    if (slurm_run(SLURM_WORDS("sinfo", "-h", "-o", SLURM_PARTITION_FORMAT), 0, &text, &err) == RP_OK) {
        uint32_t n = slurm_parse_partitions(text, partitions, SLURM_PARTITIONS);
        slurm_check_partitions(config, partitions, n, report);
    } else {
        schema_problem(report, "launch.engine", "is slurm, but %s", err.text);
    }
    free(text);
    free(partitions);
}

rp_status slurm_check_shared(const struct run_config *config, const char *folder, rp_error *err)
{
    char path[1024], partition[512];
    const char *name = config->launch.slurm.partition;
    snprintf(path, sizeof path, "%s/.replay-shared-XXXXXX", folder);
    int file = mkstemp(path);
    if (file < 0)
        return err_set(err, RP_IO, "the folder '%s' cannot be written", folder);
    close(file);
    snprintf(partition, sizeof partition, "--partition=%s", name);
    char *text = NULL;
    rp_status status = slurm_run(SLURM_WORDS("srun", "--nodes=1", "--ntasks=1", "--immediate=8", "--quiet",
                                             name[0] ? partition : "--quiet", "--", "sh", "-c",
                                             "test -e \"$1\" && echo seen || echo missing", "sh", path),
                                 SHARED_NS, &text, err);
    bool missing = status == RP_OK && strstr(text, "missing");
    free(text);
    unlink(path);
    if (status != RP_OK)
        return status == RP_FAILED_PRECONDITION ? err->status = RP_UNAVAILABLE : status;
    return missing
               ? err_set(err, RP_FAILED_PRECONDITION,
                         "nodes of the cluster do not see the folder '%s': the run's folder must be on a file system "
                         "that all nodes share (launch.runs, --folder)",
                         folder)
               : RP_OK;
}
