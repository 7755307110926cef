#include "agent/launch/process/command.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config/placeholder.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/keys/keys.h"

const char *const role_names[ROLES] = {"broker", "learner", "actor", "evaluator"};

/* ---- a list of words that grows; what could not be allocated shows at its end ---- */

struct words {
    char **list; /* NULL-terminated */
    uint32_t count, capacity;
    bool failed;
};

/* Takes the word. */
static void words_take(struct words *self, char *word)
{
    if (self->count + 2 > self->capacity) {
        uint32_t capacity = self->capacity ? 2 * self->capacity : 32;
        char **list = realloc(self->list, capacity * sizeof *list);
        if (list) {
            self->list = list;
            self->list[self->count] = NULL;
            self->capacity = capacity;
        }
    }
    if (!word || self->count + 2 > self->capacity) {
        self->failed = true;
        free(word);
        return;
    }
    self->list[self->count++] = word;
    self->list[self->count] = NULL;
}

static void words_add(struct words *self, const char *word)
{
    words_take(self, strdup(word));
}

static void words_addf(struct words *self, const char *format, ...) RP_PRINTF(2, 3);
static void words_addf(struct words *self, const char *format, ...)
{
    char *word = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&word, format, args);
    va_end(args);
    words_take(self, n < 0 ? NULL : word);
}

/* Takes self. Returns the list, or NULL if there was no memory. */
static char **words_give(struct words *self)
{
    if (self->failed)
        command_free(&self->list);
    return self->list;
}

void command_free(char ***list)
{
    for (char **word = *list; word && *word; word++)
        free(*word);
    free(*list);
    *list = NULL;
}

/* ---- placeholders ---- */

/* The number of processes of the role, and at least as many as the index implies. */
static uint32_t count_of(const struct command_context *context, enum role role, uint32_t index)
{
    uint32_t count = role == ROLE_LEARNER ? context->learners : context->actors;
    return count > index ? count : index + 1;
}

/* False: the value is not known yet. */
static bool fill(struct text *out, enum placeholder place, const struct command_context *context, enum role role,
                 uint32_t index)
{
    const struct endpoints *endpoints = context->endpoints;
    const struct run_config *config = context->config;
    const struct table_config *table;
    switch (place) {
    case PLACEHOLDER_SERVICE:
    case PLACEHOLDER_INGEST:
    case PLACEHOLDER_EVENTS:
        if (endpoints)
            text_add(out, "%s",
                     place == PLACEHOLDER_SERVICE  ? endpoints->service
                     : place == PLACEHOLDER_INGEST ? endpoints->ingest
                                                   : endpoints->events);
        return endpoints != NULL;
    case PLACEHOLDER_INDEX:
        text_add(out, "%u", index);
        return true;
    case PLACEHOLDER_COUNT:
        text_add(out, "%u", count_of(context, role, index));
        return true;
    case PLACEHOLDER_SEED:
        text_add(out, "%" PRIu64, (uint64_t)config->seed + index);
        return true;
    case PLACEHOLDER_FOLDER:
        text_add(out, "%s", context->folder);
        return true;
    case PLACEHOLDER_CONFIG:
        text_add(out, "%s", context->config_path);
        return true;
    case PLACEHOLDER_HERE:
        text_add(out, "%s", context->here);
        return true;
    case PLACEHOLDER_TABLE:
        table = run_config_table(config);
        text_add(out, "%s", table && table->name ? table->name : "");
        return true;
    default:
        text_add(out, "%s", config->name ? config->name : "");
        return true;
    }
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
            if (place == PLACEHOLDERS)
                status = err_set(err, RP_INVALID_ARGUMENT, "%ss.command: there is no placeholder like '%.40s'",
                                 role_names[role], at);
            else if (!fill(&out, place, context, role, index))
                status = err_set(err, RP_FAILED_PRECONDITION, "%ss.command: there is no broker yet for {%s}",
                                 role_names[role], placeholder_names[place]);
            at += length + 2;
        }
    }
    words_add(words, text_get(&out));
    text_fini(&out);
    return status;
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
    words_add(words, "-c");
    words_add(words, context->config_path);
}

/* replay-actor, or its counterpart in Python. */
static void add_actor(struct words *words, const struct command_context *context)
{
    if (!env_is_python(&context->config->environment)) {
        add_program(words, context, "replay-actor");
        return;
    }
    words_add(words, context->config->environment.interpreter);
    words_add(words, "-m");
    words_add(words, "replaybus.actor");
    words_add(words, "-c");
    words_add(words, context->config_path);
}

static void add_overrides(struct words *words, const struct command_context *context)
{
    for (const char *const *override = context->overrides; override && *override; override++) {
        words_add(words, "--set");
        words_add(words, *override);
    }
}

/* The value of an override is YAML: quotes keep a path from being read as something else. */
static void add_path(struct words *words, const char *key, const char *path)
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
    words_add(words, text_get(&quoted));
    text_fini(&quoted);
}

static void add_folder(struct words *words, const char *folder)
{
    words_add(words, "--folder");
    add_path(words, "", folder);
}

static const char *default_of(const char *key)
{
    for (uint32_t i = 0; i < broker_schema.n_rows; i++) {
        if (strcmp(broker_schema.rows[i].path, key) == 0)
            return broker_schema.rows[i].default_text;
    }
    return NULL;
}

/* A broker without a port in the file gets any free port, and after a restart the same port again. */
static void add_endpoint(struct words *words, const char *key, const char *configured, const char *bound)
{
    const char *usual = default_of(key);
    const char *bind = usual && strcmp(configured, usual) == 0 ? "tcp://127.0.0.1:0" : configured;
    const char *port = strrchr(bind, ':');
    bool any = strncmp(bind, "tcp://", 6) == 0 && (strcmp(port, ":0") == 0 || strcmp(port, ":*") == 0);
    const char *known = bound ? strrchr(bound, ':') : NULL;
    if (any && known) {
        words_add(words, "--set");
        words_addf(words, "broker.%s=%.*s%s", key, (int)(port - bind), bind, known);
    } else if (bind != configured) {
        words_add(words, "--set");
        words_addf(words, "broker.%s=%s", key, bind);
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
    add_path(words, key, command_keep(context, dir, path, sizeof path));
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
    words_add(words, "--set");
    words_addf(words, "broker.security.quota.sessions=%lld", (long long)need);
}

static void add_broker(struct words *words, const struct command_context *context)
{
    const struct broker_config *broker = &context->config->broker;
    bool many = config_shards(broker) > 1; /* each shard has ports of its own, which only the broker's file knows */
    const struct endpoints *bound = many ? NULL : context->endpoints;
    add_program(words, context, "replay-broker");
    words_add(words, "--section");
    words_add(words, "broker");
    words_add(words, "--endpoints-file");
    words_add(words, context->endpoints_file);
    if (many && context->endpoints)
        words_add(words, "--again");
    add_endpoint(words, "service", broker->service, bound ? bound->service : NULL);
    add_endpoint(words, "ingest", broker->ingest, bound ? bound->ingest : NULL);
    add_endpoint(words, "events", broker->events, bound ? bound->events : NULL);
    add_dir(words, context, "broker.journal.dir=", broker->journal_dir);
    add_dir(words, context, "broker.checkpoint.dir=", broker->checkpoint_dir);
    add_dir(words, context, "broker.storage.dir=", broker->storage_dir);
    if (context->keys && context->keys->on) {
        words_add(words, "--set");
        add_path(words, "broker.security.keys=", context->keys->list);
        add_writers(words, context->config);
    }
    /* Hosts are told the address by the launcher. Processes of this machine need not reach it. */
    if (broker->advertise && broker->advertise[0] && endpoint_is_any(broker->service)) {
        words_add(words, "--set");
        words_add(words, "broker.advertise=''");
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
    words_add(words, context->endpoints ? "--endpoint" : "--endpoints-file");
    words_add(words, context->endpoints ? context->endpoints->service : context->endpoints_file);
    words_add(words, "--index");
    words_addf(words, "%u", index);
    if (role == ROLE_EVALUATOR)
        words_add(words, "--evaluate");
    if (config_folder(&context->config->broker)) { /* a broker that starts again may have much to load first */
        words_add(words, "--timeout");
        words_add(words, "30min");
    }
    words_add(words, "--set");
    words_addf(words, "learners.count=%u", learners);
    words_add(words, "--set");
    words_addf(words, "actors.count=%u", actors);
    words_add(words, "--set");
    words_add(words, "stop.time=0s");
    if (context->config->launch.engine != ENGINE_LOCAL) { /* its bounds are for the run, not for one measurement */
        words_add(words, "--set");
        words_add(words, "launch.engine=local");
    }
    add_folder(words, context->folder);
    if (role == ROLE_LEARNER && !context->resume)
        words_add(words, "--fresh");
    add_overrides(words, context);
}

/* ---- the whole ---- */

char **command_build(const struct command_context *context, enum role role, uint32_t index, rp_error *err)
{
    const struct run_config *config = context->config;
    static const struct schema_list none = {0};
    const struct schema_list *own = role == ROLE_ACTOR     ? &config->actors.command
                                    : role == ROLE_LEARNER ? &config->learners.command
                                                           : &none;
    struct words words = {0};
    rp_status status = RP_OK;
    if (own->count > 0)
        status = add_users(&words, own, context, role, index, err);
    else if (role == ROLE_BROKER)
        add_broker(&words, context);
    else
        add_worker(&words, context, role, index);
    if (status != RP_OK) {
        command_free(&words.list);
        return NULL;
    }
    if (words.failed)
        err_set(err, RP_NO_MEMORY, "no memory for a command line");
    return words_give(&words);
}

char **command_environment(const struct command_context *context, enum role role, uint32_t index)
{
    struct words words = {0};
    if (context->endpoints && role != ROLE_BROKER)
        words_addf(&words, "REPLAY_ENDPOINT=%s", context->endpoints->service);
    words_addf(&words, "REPLAY_INDEX=%u", index);
    words_addf(&words, "REPLAY_FOLDER=%s", context->folder);
    words_addf(&words, "REPLAY_CONFIG=%s", context->config_path);
    words_addf(&words, "REPLAY_COUNT=%u", count_of(context, role, index));
    words_addf(&words, "REPLAY_SEED=%" PRIu64, (uint64_t)context->config->seed + index);
    const struct table_config *table = run_config_table(context->config);
    if (table && table->name)
        words_addf(&words, "REPLAY_TABLE=%s", table->name);
    words_add(&words, "OPENBLAS_NUM_THREADS=1");
    if (log_is_json())
        words_add(&words, LOG_JSON_VARIABLE "=1");
    if (command_in_python(context->config, role)) {
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
    return words_give(&words);
}

char **command_measure(const struct command_context *context, const char *weights)
{
    struct words words = {0};
    add_actor(&words, context);
    words_add(&words, "--weights");
    words_add(&words, weights);
    words_add(&words, "--episodes");
    words_addf(&words, "%" PRId64, context->config->evaluator.episodes);
    add_folder(&words, "");
    add_overrides(&words, context);
    return words_give(&words);
}

/* ---- Python ---- */

bool command_in_python(const struct run_config *config, enum role role)
{
    bool custom = role == ROLE_ACTOR && config->actors.command.count > 0;
    return (role == ROLE_ACTOR || role == ROLE_EVALUATOR) && !custom && env_is_python(&config->environment);
}

char *command_python_path(const char *programs, const char *here)
{
    const char *before = getenv("PYTHONPATH");
    char package[1024], *path = NULL;
    snprintf(package, sizeof package, "%s/lib/python/replaybus/__init__.py", programs ? programs : "");
    struct text out = {0};
    text_add(&out, "PYTHONPATH=%s", here ? here : "");
    if (access(package, R_OK) == 0)
        text_add(&out, ":%s/lib/python", programs);
    if (before && before[0])
        text_add(&out, ":%s", before);
    path = strdup(text_get(&out));
    text_fini(&out);
    return path;
}

char **command_describe(const struct env_config *config)
{
    struct words words = {0};
    const rp_option *options = config->options.data;
    words_add(&words, config->interpreter);
    words_add(&words, "-m");
    words_add(&words, "replaybus.describe");
    words_add(&words, config->python[0] ? "--python" : "--gym");
    words_add(&words, env_name(config));
    for (uint32_t i = 0; i < config->options.count; i++) {
        words_add(&words, "--option");
        words_addf(&words, "%s=%s", options[i].name, options[i].value);
    }
    return words_give(&words);
}
