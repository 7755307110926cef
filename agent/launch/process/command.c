#include "agent/launch/process/command.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config/placeholder.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/need.h"
#include "proto/keys/keys.h"

const char *const role_names[ROLES] = {"broker", "learner", "actor", "evaluator"};

/* ---- words ---- */

void words_add_path(struct words *self, const char *key, const char *path)
{
    struct text quoted = {0};
    text_add(&quoted, "%s", key);
    if (path[strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")] == '\0') {
        text_add(&quoted, "%s", path);
    } else {
        text_add(&quoted, "'");
        for (const char *c = path; *c; c++)
            text_add(&quoted, "%s%c", *c == '\'' ? "'" : "", *c);
        text_add(&quoted, "'");
    }
    words_add(self, text_get(&quoted));
    text_fini(&quoted);
}

void shell_add(struct text *out, const char *word)
{
    text_add(out, " '");
    for (size_t n; *word; word += n + (word[n] == '\'')) {
        n = strcspn(word, "'");
        text_add(out, "%.*s%s", (int)n, word, word[n] ? "'\\''" : "");
    }
    text_add(out, "'");
}

/* Adds an override. */
#define words_set(words, ...) (words_add((words), "--set"), words_addf((words), __VA_ARGS__))

/* ---- placeholders ---- */

/* The key of the user's own program of a role. */
static const char *const own_keys[ROLES] = {
    [ROLE_LEARNER] = "learners.command", [ROLE_ACTOR] = "actors.command", [ROLE_EVALUATOR] = "evaluator.command"};

/* The number of processes of the role, and at least as many as the index implies; 0: the run has none. */
static uint32_t count_of(const struct command_context *context, enum role role, uint32_t index)
{
    const struct run_config *config = context->config;
    uint32_t count = role == ROLE_LEARNER ? context->learners : context->actors;
    if ((role == ROLE_LEARNER ? config->learners.count : config->actors.count) == 0)
        return 0;
    return count > index ? count : index + 1;
}

/* The value of a placeholder: free(). NULL: not known yet. */
static char *value_of(enum placeholder place, const struct command_context *context, enum role role, uint32_t index)
{
    const struct endpoints *endpoints = context->endpoints;
    const struct run_config *config = context->config;
    const struct table_config *table = run_config_table(config);
    const char *const texts[PLACEHOLDERS] = {
        [PLACEHOLDER_SERVICE] = endpoints ? endpoints->service : NULL,
        [PLACEHOLDER_INGEST] = endpoints ? endpoints->ingest : NULL,
        [PLACEHOLDER_EVENTS] = endpoints ? endpoints->events : NULL,
        [PLACEHOLDER_FOLDER] = context->folder,
        [PLACEHOLDER_CONFIG] = context->config_path,
        [PLACEHOLDER_HERE] = context->here,
        [PLACEHOLDER_TABLE] = table && table->name ? table->name : "",
        [PLACEHOLDER_NAME] = config->name ? config->name : "",
    };
    if (place == PLACEHOLDER_INDEX || place == PLACEHOLDER_COUNT)
        return need_print("%u", place == PLACEHOLDER_INDEX ? index : count_of(context, role, index));
    if (place == PLACEHOLDER_SEED)
        return need_print("%" PRIu64, (uint64_t)config->seed + index);
    return texts[place] ? need_text(texts[place]) : NULL;
}

/* Adds one word of a user's command, with its placeholders filled in. */
static rp_status expand(struct words *words, const char *word, const struct command_context *context, enum role role,
                        uint32_t index, rp_error *err)
{
    struct text out = {0};
    rp_status status = RP_OK;
    for (const char *at = word; *at && status == RP_OK;) {
        size_t length = strcspn(at, "{");
        text_add(&out, "%.*s", (int)length, at);
        at += length;
        if (at[0] == '{' && at[1] == '{') {
            text_add(&out, "{");
            at += 2;
        } else if (at[0] == '{') {
            enum placeholder place = placeholder_find(at, &length);
            char *value = place < PLACEHOLDERS ? value_of(place, context, role, index) : NULL;
            text_add(&out, "%s", value ? value : "");
            if (place == PLACEHOLDERS)
                status =
                    err_set(err, RP_INVALID_ARGUMENT, "%s: there is no placeholder like '%.40s'", own_keys[role], at);
            else if (!value)
                status = err_set(err, RP_FAILED_PRECONDITION, "%s: there is no broker yet for {%s}", own_keys[role],
                                 placeholder_names[place]);
            free(value);
            at += length + 2;
        }
    }
    words_add(words, text_get(&out));
    text_fini(&out);
    return status;
}

/* The user's own program of a role; empty: ours. */
static const struct schema_list *own_of(const struct run_config *config, enum role role)
{
    static const struct schema_list none = {0};
    return role == ROLE_ACTOR       ? &config->actors.command
           : role == ROLE_LEARNER   ? &config->learners.command
           : role == ROLE_EVALUATOR ? &config->evaluator.command
                                    : &none;
}

static rp_status add_users(struct words *words, const struct schema_list *command,
                           const struct command_context *context, enum role role, uint32_t index, rp_error *err)
{
    char *const *list = command->data;
    for (uint32_t i = 0; i < command->count; i++)
        RP_TRY(expand(words, list[i], context, role, index, err));
    return RP_OK;
}

/* ---- our own programs ---- */

static void add_program(struct words *words, const struct command_context *context, const char *name)
{
    bool here = context->programs && context->programs[0];
    words_addf(words, "%s%s%s", here ? context->programs : "", here ? "/" : "", name);
    words_put(words, "-c", context->config_path);
}

/* replay-actor, or its counterpart in Python. */
static void add_actor(struct words *words, const struct command_context *context)
{
    const struct env_config *env = &context->config->environment;
    if (env_is_python(env))
        words_put(words, env->interpreter, "-m", "replaybus.actor", "-c", context->config_path);
    else
        add_program(words, context, "replay-actor");
}

static void add_overrides(struct words *words, const struct command_context *context)
{
    for (const char *const *override = context->overrides; override && *override; override++) {
        words_set(words, "%s", *override);
    }
}

static void add_folder(struct words *words, const char *folder)
{
    words_add(words, "--folder");
    words_add_path(words, "", folder);
}

/* A broker that is started again gets the port that it had. */
static void add_endpoint(struct words *words, const char *key, const char *configured, const char *bound)
{
    const char *port = strrchr(configured, ':'), *known = bound ? strrchr(bound, ':') : NULL;
    bool any = strncmp(configured, "tcp://", 6) == 0 && (strcmp(port, ":0") == 0 || strcmp(port, ":*") == 0);
    if (any && known) {
        words_set(words, "broker.%s=%.*s%s", key, (int)(port - configured), configured, known);
    }
}

const char *command_keep(const struct command_context *context, const char *dir, char *out, size_t size)
{
    bool as_is = dir[0] == '/' || strncmp(dir, "./", 2) == 0 || strncmp(dir, "../", 3) == 0 || !context->folder[0];
    snprintf(out, size, "%s%s%s", as_is ? "" : context->folder, as_is ? "" : "/", dir);
    return out;
}

static void add_dir(struct words *words, const struct command_context *context, const char *key, const char *dir)
{
    char path[1024];
    if (!dir || !dir[0])
        return;
    words_add(words, "--set");
    words_add_path(words, key, command_keep(context, dir, path, sizeof path));
}

/* Lets all actors of the run have one key: each of its environments is a writer, and an actor that is started again opens
 * further ones before the old ones expire. */
static void add_writers(struct words *words, const struct run_config *config)
{
    uint32_t least, most = 0;
    run_config_slurm_actors(config, &least, &most);
    int64_t need = 2 * (int64_t)most * config->actors.environments;
    if (config->broker.quota.sessions == 0 || config->broker.quota.sessions >= need)
        return;
    words_set(words, "broker.security.quota.sessions=%lld", (long long)need);
}

static void add_broker(struct words *words, const struct command_context *context)
{
    const struct broker_config *broker = &context->config->broker;
    bool many = config_shards(broker) > 1; /* each shard has ports of its own, which only the broker's file knows */
    const struct endpoints *bound = many ? NULL : context->endpoints;
    add_program(words, context, "replay-broker");
    words_put(words, "--section", "broker", "--endpoints-file", context->endpoints_file);
    if (many && context->endpoints)
        words_add(words, "--again");
    add_endpoint(words, "service", broker->service, bound ? bound->service : NULL);
    add_endpoint(words, "ingest", broker->ingest, bound ? bound->ingest : NULL);
    add_endpoint(words, "events", broker->events, bound ? bound->events : NULL);
    add_dir(words, context, "broker.folder=", broker->folder);
    if (context->keys && context->keys->on) {
        words_add(words, "--set");
        words_add_path(words, "broker.security.keys=", context->keys->list);
        add_writers(words, context->config);
    }
    /* Hosts are told the address by the launcher. Processes of this machine need not reach it. */
    if (broker->advertise && broker->advertise[0] && endpoint_is_any(broker->service)) {
        words_set(words, "broker.advertise=''");
    }
    add_overrides(words, context);
}

static void add_worker(struct words *words, const struct command_context *context, enum role role, uint32_t index)
{
    uint32_t actors = count_of(context, ROLE_ACTOR, role == ROLE_ACTOR ? index : 0);
    uint32_t learners = count_of(context, ROLE_LEARNER, role == ROLE_LEARNER ? index : 0);
    if (role == ROLE_LEARNER)
        add_program(words, context, "replay-learner");
    else
        add_actor(words, context);
    words_put(words, context->endpoints ? "--endpoint" : "--endpoints-file",
              context->endpoints ? context->endpoints->service : context->endpoints_file, "--index");
    words_addf(words, "%u", index);
    if (role == ROLE_EVALUATOR)
        words_add(words, "--evaluate");
    if (config_folder(&context->config->broker)) /* a broker that starts again may have much to load first */
        words_put(words, "--timeout", "30min");
    words_set(words, "learners.count=%u", learners);
    words_set(words, "actors.count=%u", actors);
    words_set(words, "stop.time=0s");
    if (context->config->launch.engine != ENGINE_LOCAL) { /* its bounds are for the run, not for one measurement */
        words_set(words, "launch.engine=local");
    }
    add_folder(words, context->folder);
    if (role == ROLE_LEARNER && !context->resume)
        words_add(words, "--fresh");
    add_overrides(words, context);
}

/* ---- the whole ---- */

char **command_build(const struct command_context *context, enum role role, uint32_t index, rp_error *err)
{
    const struct schema_list *own = own_of(context->config, role);
    struct words words = {0};
    rp_status status = RP_OK;
    if (own->count > 0)
        status = add_users(&words, own, context, role, index, err);
    else if (role == ROLE_BROKER)
        add_broker(&words, context);
    else
        add_worker(&words, context, role, index);
    if (status != RP_OK)
        words_free(&words.list);
    return words.list;
}

char **command_environment(const struct command_context *context, enum role role, uint32_t index)
{
    static const struct {
        const char *name;
        enum placeholder place;
    } variables[] = {{"ENDPOINT", PLACEHOLDER_SERVICE}, {"INDEX", PLACEHOLDER_INDEX}, {"FOLDER", PLACEHOLDER_FOLDER},
                     {"CONFIG", PLACEHOLDER_CONFIG},    {"COUNT", PLACEHOLDER_COUNT}, {"SEED", PLACEHOLDER_SEED},
                     {"TABLE", PLACEHOLDER_TABLE}};
    struct words words = {0};
    for (size_t i = role == ROLE_BROKER; i < sizeof variables / sizeof variables[0]; i++) {
        char *value = value_of(variables[i].place, context, role, index);
        if (value)
            words_addf(&words, "REPLAY_%s=%s", variables[i].name, value);
        free(value);
    }
    words_add(&words, "OPENBLAS_NUM_THREADS=1");
    if (log_is_json())
        words_add(&words, LOG_JSON_VARIABLE "=1");
    /* In Python, because the environment is (python3 -m replaybus.actor instead of replay-actor), or perhaps, because
     * the program is the user's. */
    bool steps = role == ROLE_ACTOR || role == ROLE_EVALUATOR;
    if (own_of(context->config, role)->count > 0 || (steps && env_is_python(&context->config->environment))) {
        if (context->elsewhere)
            words_addf(&words, "PYTHONPATH=%s%s%s%s", context->here, context->python ? ":" : "",
                       context->python ? context->programs : "", context->python ? "/lib/python" : "");
        else
            words_take(&words, command_python_path(context->programs, context->here));
        words_add(&words, "PYTHONUNBUFFERED=1"); /* what the environment prints reaches the log at once */
    }
    char key[1100]; /* none without keys: the user's variable may name one for another broker */
    if (role != ROLE_BROKER)
        words_addf(&words, KEY_FILE_VARIABLE "=%s",
                   run_keys_file(context->keys, role == ROLE_LEARNER ? "learner" : "actor", key, sizeof key));
    return words.list;
}

const char *command_name(enum role role, uint32_t index, char out[COMMAND_NAME])
{
    snprintf(out, COMMAND_NAME, role == ROLE_BROKER ? "%s" : "%s-%u", role_names[role], index);
    return out;
}

rp_status command_start(const struct command_context *context, enum role role, uint32_t index, const char *logs,
                        struct process *process, int64_t now_ns, rp_error *err)
{
    char name[COMMAND_NAME], log[1024], **argv = command_build(context, role, index, err);
    if (!argv)
        return (rp_status)err->status;
    char **environment = command_environment(context, role, index);
    snprintf(log, sizeof log, "%s/%s.log", logs, command_name(role, index, name));
    const struct process_options options = {.name = name,
                                            .argv = (const char *const *)argv,
                                            .environment = (const char *const *)environment,
                                            .log = log,
                                            .guard = context->guard,
                                            .place = context->place};
    rp_status status = process_start(process, &options, now_ns, err);
    words_free(&argv);
    words_free(&environment);
    return status;
}

char **command_evaluate(const struct command_context *context, const struct command_evaluation *evaluation,
                        rp_error *err)
{
    const struct schema_list *own = own_of(context->config, ROLE_EVALUATOR);
    struct words words = {0};
    int64_t episodes = context->config->evaluator.episodes;
    if (own->count == 0) {
        add_actor(&words, context);
    } else if (add_users(&words, own, context, ROLE_EVALUATOR, 0, err) != RP_OK) {
        words_free(&words.list);
        return NULL;
    }
    words_put(&words, "--weights", evaluation->weights);
    if (evaluation->episodes || episodes > 0) {
        words_add(&words, "--episodes");
        words_take(&words, evaluation->episodes ? need_text(evaluation->episodes) : need_print("%" PRId64, episodes));
    }
    if (evaluation->show)
        words_add(&words, "--show");
    if (evaluation->json)
        words_add(&words, "--json");
    if (own->count == 0) {
        add_folder(&words, ""); /* the run's own reports stay as they are */
        add_overrides(&words, context);
    }
    return words.list;
}

/* ---- Python ---- */

char *command_python_path(const char *programs, const char *here)
{
    const char *before = getenv("PYTHONPATH");
    char package[1024];
    snprintf(package, sizeof package, "%s/lib/python/replaybus/__init__.py", programs ? programs : "");
    struct text out = {0};
    text_add(&out, "PYTHONPATH=%s", here ? here : "");
    if (access(package, R_OK) == 0)
        text_add(&out, ":%s/lib/python", programs);
    if (before && before[0])
        text_add(&out, ":%s", before);
    char *path = need_text(text_get(&out));
    text_fini(&out);
    return path;
}

char **command_describe(const struct env_config *config)
{
    struct words words = {0};
    const rp_option *options = config->options.data;
    words_put(&words, config->interpreter, "-m", "replaybus.describe", config->python[0] ? "--python" : "--gym",
              env_name(config));
    for (uint32_t i = 0; i < config->options.count; i++) {
        words_add(&words, "--option");
        words_addf(&words, "%s=%s", options[i].name, options[i].value);
    }
    return words.list;
}

/* ---- endpoints that a broker has written into a file ---- */

rp_status endpoints_read(const char *path, struct endpoints *out, rp_error *err)
{
    static const char *const names[] = {"service", "ingest", "events"};
    char *const to[] = {out->service, out->ingest, out->events};
    *out = (struct endpoints){0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *found;
        RP_TRY(endpoint_from_file(path, names[i], &found, err));
        bool fits = (size_t)snprintf(to[i], sizeof out->service, "%s", found) < sizeof out->service;
        free(found);
        if (!fits)
            return err_set(err, RP_INVALID_ARGUMENT, "the %s endpoint in '%s' is too long", names[i], path);
    }
    return RP_OK;
}
