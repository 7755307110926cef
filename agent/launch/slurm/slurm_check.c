#include "agent/launch/slurm/slurm_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/slurm/slurm_jobs.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

#define MIB (UINT64_C(1) << 20)
#define SHARED_NS (15 * NS_PER_S)
#define PARTITION_NAME sizeof((struct slurm_partition *)0)->name

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

static bool read_partition(char *line, void *partition)
{
    struct slurm_partition *out = partition;
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
    return slurm_parse_lines(text, read_partition, out, sizeof *out, most);
}

/* ---- checks ---- */

struct cluster {
    const struct slurm_partition *list;
    uint32_t n;
};

/* Copies the first name of a list such as "main,spare". Gives the rest; NULL: the list is at its end. */
static const char *next_name(const char *list, char *out, size_t size)
{
    size_t length = strcspn(list, ",");
    snprintf(out, size, "%.*s", (int)length, list);
    return list[length] ? list + length + 1 : NULL;
}

static bool is_listed(const char *list, const char *name)
{
    char one[PARTITION_NAME];
    bool found;
    do {
        list = next_name(list, one, sizeof one);
        found = strcmp(one, name) == 0;
    } while (list && !found);
    return found;
}

/* Adds up what the rows of all named partitions offer; "": of the default one. False: there is none of them. */
static bool find_partition(const struct cluster *cluster, const char *names, struct slurm_partition *out)
{
    bool found = false;
    *out = (struct slurm_partition){0};
    for (uint32_t i = 0; i < cluster->n; i++) {
        const struct slurm_partition *row = &cluster->list[i];
        if (names[0] ? !is_listed(names, row->name) : !row->usual)
            continue;
        found = true;
        snprintf(out->name, sizeof out->name, "%s", names[0] ? names : row->name);
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

/* Gives what the partitions offer together, or reports that one of them does not exist, or that all are down: the job runs in
 * whichever is free first. path: the key with the names. */
static bool check_names(const struct cluster *cluster, const char *names, const char *path,
                        struct schema_report *report, struct slurm_partition *out)
{
    char all[256], one[PARTITION_NAME];
    const char *rest = names;
    bool found;
    do {
        rest = next_name(rest, one, sizeof one);
        found = find_partition(cluster, one, out) && (one[0] || !names[0]);
    } while (rest && found);
    if (!found && names[0])
        schema_problem(report, path, "the cluster has no partition '%s'; there are: %s", one,
                       name_all(cluster, all, sizeof all));
    else if (!found)
        schema_problem(report, path, "the cluster has no default partition: name one of these: %s",
                       name_all(cluster, all, sizeof all));
    if (!found)
        return false;
    find_partition(cluster, names, out);
    if (!out->up)
        schema_problem(report, path, "partition '%s' is down", out->name);
    return out->up;
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
    if (check_names(&cluster, slurm->partition, "launch.slurm.partition", report, &found)) {
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
                   : check_names(&cluster, actors, path, report, &found);
    if (ok)
        check_cores(&found, slurm->actors_per_task, "launch.slurm.actors.per_task", report);
}

void slurm_check(const struct run_config *config, struct schema_report *report)
{
    char *text = NULL;
    rp_error err = {0};
    struct slurm_partition *partitions = need_alloc(SLURM_PARTITIONS * sizeof *partitions);
    if (slurm_run(SLURM_WORDS("sinfo", "-a", "-h", "-o", SLURM_PARTITION_FORMAT), 0, &text, &err) == RP_OK) {
        uint32_t n = slurm_parse_partitions(text, partitions, SLURM_PARTITIONS);
        slurm_check_partitions(config, partitions, n, report);
    } else {
        schema_problem(report, "launch.engine", "is slurm, but %s", err.text);
    }
    free(text);
    free(partitions);
}

/* Asks a free node whether it sees a file. The options of the core job name an account, for example, without which Slurm
 * refuses. */
static rp_status ask_node(const struct slurm_section *slurm, const char *path, char **answer, rp_error *err)
{
    static const char question[] = "test -e \"$1\" && echo seen || echo missing";
    const char *const before[] = {"srun", "--nodes=1", "--ntasks=1", "--immediate=8", "--quiet"};
    const char *const after[] = {"--", "sh", "-c", question, "sh", path, NULL};
    const size_t n_before = sizeof before / sizeof before[0], n_options = slurm->options.count;
    char partition[512];
    const char **argv = need_alloc((n_before + 1 + n_options + sizeof after / sizeof after[0]) * sizeof *argv);
    size_t n = n_before;
    memcpy(argv, before, sizeof before);
    snprintf(partition, sizeof partition, "--partition=%s", slurm->partition);
    if (slurm->partition[0])
        argv[n++] = partition;
    for (size_t i = 0; i < n_options; i++)
        argv[n++] = ((char *const *)slurm->options.data)[i];
    memcpy(argv + n, after, sizeof after);
    rp_status status = slurm_run(argv, SHARED_NS, answer, err);
    free(argv);
    return status;
}

rp_status slurm_check_shared(const struct run_config *config, const char *folder, rp_error *err)
{
    char path[1024], *text = NULL;
    snprintf(path, sizeof path, "%s/.replay-shared-XXXXXX", folder);
    int file = mkstemp(path);
    if (file < 0)
        return err_set(err, RP_IO, "the folder '%s' cannot be written", folder);
    close(file);
    rp_status status = ask_node(&config->launch.slurm, path, &text, err);
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
