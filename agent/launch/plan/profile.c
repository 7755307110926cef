/* What a configuration says about what is measured for it, and what the cache has of it. */
#include "agent/launch/plan/profile.h"

#include <json-c/json.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/launch/process/run_folder.h"
#include "proto/base/error.h"
#include "proto/base/json_map.h"
#include "proto/base/need.h"
#include "proto/base/rng.h"

#define VERSION 11 /* of the cache */
/* A side that waits nearly all the time says too little about what it could do. */
#define MOST_IDLE 0.95

/* ---- what the configuration says ---- */

int64_t profile_batch(const struct run_config *config)
{
    const struct agent_ops *ops = run_config_algorithm(config);
    int64_t batch = config->agent.batch > 0 || !ops ? config->agent.batch : ops->defaults->batch;
    return batch > 0 ? batch : 1;
}

/* ---- what lasts ---- */

double profile_items_per_step(const struct run_config *config)
{
    if (config->actors.command.count > 0 || config->adder.kind == ADDER_EPISODE)
        return 0.0;
    return config->adder.kind == ADDER_TRANSITION ? 1.0 : 1.0 / (double)config->adder.period;
}

double profile_lasting(double items_per_step, double steps, double inserts)
{
    return items_per_step > 0 && steps > 0 ? fmin(inserts, items_per_step * steps) : inserts;
}

void profile_lasting_pair(double items_per_step, double steps, struct plan_pair *pair)
{
    double *actors = &pair->waits.actor[IDLE_CREDIT], *learners = &pair->waits.learner[IDLE_SAMPLE];
    double idle = isnan(*actors) ? 0.0 : *actors;
    if (!(items_per_step > 0 && steps > 0 && pair->inserts > 0) || idle > MOST_IDLE)
        return;
    double could = items_per_step * steps / (1.0 - idle), inserts = fmin(pair->inserts, could);
    double share = inserts / pair->inserts;
    pair->inserts = inserts;
    pair->samples *= share;
    if (!isnan(*actors))
        *actors = fmin(idle, 1.0 - inserts / could);
    *learners = 1.0 - (1.0 - *learners) * share;
}

/* ---- hosts ---- */

struct plan_host *profile_hosts(const struct host_pool *pool, const struct plan_input *known, uint32_t *n)
{
    *n = host_pool_count(pool);
    struct plan_host *hosts = need_alloc(*n * sizeof *hosts);
    struct plan_input now = {.hosts = hosts, .n_hosts = *n};
    for (uint32_t i = 0; i < *n; i++) {
        bool ready = host_pool_ready(pool, i);
        hosts[i] = (struct plan_host){.cores = host_pool_cores(pool, i),
                                      .memory = host_pool_memory(pool, i),
                                      .actors = ready && host_pool_takes(pool, i, ROLE_ACTOR),
                                      .learners = ready && host_pool_takes(pool, i, ROLE_LEARNER)};
        snprintf(hosts[i].name, sizeof hosts[i].name, "%s", host_pool_info(pool, i)->name);
        host_pool_kind(pool, i, hosts[i].kind, sizeof hosts[i].kind);
    }
    for (uint32_t from = 0; from < known->n_hosts; from++)
        for (uint32_t to = 0; to < *n; to++)
            if (strcmp(hosts[to].kind, known->hosts[from].kind) == 0 && !plan_example(&now, to))
                hosts[to].actor = known->hosts[from].actor;
    return hosts;
}

/* One line for each machine that is used and its roles: what a measurement depends on. free() */
static char *describe_machines(const struct profile_options *options)
{
    char *text = NULL;
    size_t size = 0;
    uint32_t n;
    FILE *out = open_memstream(&text, &size);
    struct plan_host *hosts = profile_hosts(options->hosts, &(struct plan_input){0}, &n);
    for (uint32_t i = 0; i < n; i++)
        if (i == HOST_POOL_HOME || hosts[i].actors || hosts[i].learners) /* the broker runs at home */
            fprintf(out, "%s%s%s\n", hosts[i].kind, hosts[i].actors ? ", actors" : "",
                    hosts[i].learners ? ", learners" : "");
    free(hosts);
    fclose(out);
    return text;
}

void profile_adopt(const struct profile_options *options, struct plan_input *out)
{
    const struct run_config *config = options->home.config;
    uint32_t n;
    struct plan_host *hosts = profile_hosts(options->hosts, out, &n);
    plan_input_free(out);
    out->hosts = hosts;
    out->n_hosts = n;
    out->spi = run_config_ratio(config);
    out->other_memory = config->evaluator.episodes > 0 ? plan_actor_on(out, PLAN_HOME).memory : 0.0;
    out->fixed_actors = run_config_actors(config);
    out->fixed_learners = run_config_learners(config);
    out->max_actors = (uint32_t)config->plan.max_actors;
    out->max_learners = (uint32_t)config->plan.max_learners;
    out->fixed_shards = config->broker.shards.count;
    out->most_shards = run_config_most_shards(config, profile_batch(config));
}

/* ---- the cache ---- */

/* One file for each configuration, build and kinds of machines. The file holds the whole key, so a damaged file, or one whose name
 * belongs to another key by chance, is only a miss. */

/* Keys that do not matter for speed, and of the broker those for which the throw-away broker has its own values. */
static const char *const ignored[] = {"name",
                                      "seed",
                                      "folder",
                                      "stop.",
                                      "launch.",
                                      "report.",
                                      "hosts",
                                      "broker.service",
                                      "broker.ingest",
                                      "broker.events",
                                      "broker.seed",
                                      "broker.log.",
                                      "broker.http",
                                      "broker.journal",
                                      "broker.checkpoint.",
                                      "broker.storage.",
                                      "broker.advertise"};

/* Prints the keys that matter. */
static void add_config(const struct run_config *config, FILE *out)
{
    struct schema some = *run_schema();
    struct schema_row *rows = need_alloc(some.n_rows * sizeof *rows);
    uint32_t n = 0;
    for (uint32_t i = 0; i < some.n_rows; i++) {
        bool matters = true;
        for (size_t k = 0; k < sizeof ignored / sizeof ignored[0]; k++)
            matters &= strncmp(some.rows[i].path, ignored[k], strlen(ignored[k])) != 0;
        if (matters)
            rows[n++] = some.rows[i];
    }
    some.rows = rows;
    some.n_rows = n;
    schema_print(&some, config, out);
    free(rows);
}

/* A changed file has another size or time. */
static void add_file_state(const char *path, FILE *out)
{
    struct stat status;
    if (stat(path, &status) == 0 && S_ISREG(status.st_mode))
        fprintf(out, "file %s %lld %lld.%09ld\n", path, (long long)status.st_size, (long long)status.st_mtim.tv_sec,
                status.st_mtim.tv_nsec);
}

static void add_command(const struct schema_list *command, const char *here, FILE *out)
{
    static const char placeholder[] = "{here}";
    char *const *words = command->data;
    for (uint32_t i = 0; i < command->count; i++) {
        char path[PATH_MAX];
        const char *word = words[i];
        bool below = strncmp(word, placeholder, sizeof placeholder - 1) == 0;
        snprintf(path, sizeof path, "%s%s", below ? here : "", below ? word + sizeof placeholder - 1 : word);
        add_file_state(path, out);
    }
}

/* The user's module, if it lies beside the run's file: a.b:make is a/b.py or a/b/__init__.py. */
static void add_python(const struct env_config *config, const char *here, FILE *out)
{
    char path[PATH_MAX];
    size_t length = strcspn(config->python, ":");
    if (length == 0)
        return;
    int start = snprintf(path, sizeof path, "%s/", here);
    int used = start + snprintf(path + start, sizeof path - (size_t)start, "%.*s", (int)length, config->python);
    if (used < 0 || (size_t)used + sizeof "/__init__.py" > sizeof path)
        return;
    for (char *c = path + start; *c; c++)
        *c = *c == '.' ? '/' : *c;
    strcpy(path + used, ".py");
    add_file_state(path, out);
    strcpy(path + used, "/__init__.py");
    add_file_state(path, out);
}

char *profile_key(const struct profile_options *options, const char *machines)
{
    static const char *const programs[] = {"replay-broker", "replay-actor", "replay-learner"};
    char *text = NULL, path[PATH_MAX];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    fprintf(out, "profile %d\n%s", VERSION, machines);
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", options->home.programs, programs[i]);
        add_file_state(path, out);
    }
    add_python(&options->home.config->environment, options->home.here, out);
    add_command(&options->home.config->actors.command, options->home.here, out);
    add_command(&options->home.config->learners.command, options->home.here, out);
    add_config(options->home.config, out);
    fclose(out);
    return text;
}

/* Fills in the folder of the cache and the name of a key's file. */
static rp_status find_place(const char *key, char folder[FOLDER_SIZE], char name[48], rp_error *err)
{
    snprintf(name, 48, "profile-%016llx.json", (unsigned long long)rng_hash(0, key));
    return run_folder_cache(folder, err);
}

bool profile_load(const char *key, struct plan_input *out)
{
    char folder[FOLDER_SIZE], name[48];
    char *text = find_place(key, folder, name, NULL) == RP_OK ? run_folder_read(folder, name) : NULL;
    struct json_object *root = text ? json_tokener_parse(text) : NULL;
    *out = (struct plan_input){0};
    bool ok = strcmp(json_map_text(root, "key"), key) == 0 && plan_input_from_json(text, out);
    json_object_put(root);
    free(text);
    return ok;
}

rp_status profile_store(const char *key, const struct plan_input *input, rp_error *err)
{
    char folder[FOLDER_SIZE], name[48];
    RP_TRY(find_place(key, folder, name, err));
    RP_TRY(run_folder_make(folder, 0755, err));
    char *text = plan_to_json(NULL, input);
    struct json_object *root = json_tokener_parse(text);
    json_object_object_add(root, "key", json_object_new_string(key));
    rp_status status =
        run_folder_write(folder, name, json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY), err);
    json_object_put(root);
    free(text);
    return status;
}

/* Takes what the cache has for a configuration. */
static bool load(const struct profile_options *options, const struct run_config *config, struct plan_input *out)
{
    struct profile_options other = *options;
    other.home.config = config;
    char *machines = describe_machines(options), *key = profile_key(&other, machines);
    bool found = profile_load(key, out);
    free(key);
    free(machines);
    if (found)
        profile_adopt(options, out);
    return found;
}

/* What was measured for auto counts also holds for fixed counts, unless these need a run of their own to say how many shards pay. */
static bool load_auto(const struct profile_options *options, struct plan_input *out)
{
    struct run_config config = *options->home.config;
    struct plan_pair next;
    config.actors.count = config.learners.count = RUN_AUTO;
    if (!load(options, &config, out))
        return false;
    if (!plan_next_shards(out, &next))
        return true;
    plan_input_free(out);
    *out = (struct plan_input){0};
    return false;
}

bool profile_recall(const struct profile_options *options, struct plan_input *out)
{
    return load(options, options->home.config, out) || load_auto(options, out);
}

void profile_keep(const struct profile_options *options, const struct plan_input *input)
{
    char *machines = describe_machines(options), *key = profile_key(options, machines);
    profile_store(key, input, NULL);
    free(key);
    free(machines);
}
