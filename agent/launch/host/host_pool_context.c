/* What processes need on a host: files that are sent there, and how command lines name them. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/launch/host/host_pool_impl.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

#define CONFIG_NAME "config.yaml"
#define WEIGHTS_NAME "actors.weights"
#define HERE_NAME "here" /* folder of the files of launch.send */
#define FILES_MOST 512u
#define DEPTH_MOST 8u

/* ---- files of the user ---- */

static rp_status add_file(struct host_pool *self, const char *path, const char *name, rp_error *err)
{
    if (self->n_files == FILES_MOST)
        return err_set(err, RP_RESOURCE_EXHAUSTED, "launch.send: these are more than %u files", FILES_MOST);
    struct pool_file *files = realloc(self->files, (self->n_files + 1) * sizeof *files);
    if (!files)
        return err_set(err, RP_NO_MEMORY, "no memory for the files of launch.send");
    self->files = files;
    struct pool_file *file = &files[self->n_files];
    *file = (struct pool_file){.path = strdup(path), .name = strdup(name)};
    self->n_files++;
    return file->path && file->name ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for the files of launch.send");
}

/* Leaves out what no program needs elsewhere: hidden files, and what Python has compiled. */
static bool is_left_out(const char *name)
{
    return name[0] == '.' || strcmp(name, "__pycache__") == 0;
}

static rp_status add_path(struct host_pool *self, const char *path, const char *name, uint32_t depth, rp_error *err)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return err_set(err, RP_NOT_FOUND, "launch.send: there is no file %s", path);
    if (S_ISREG(info.st_mode))
        return add_file(self, path, name, err);
    DIR *folder = S_ISDIR(info.st_mode) && depth < DEPTH_MOST ? opendir(path) : NULL;
    if (!folder)
        return err_set(err, RP_INVALID_ARGUMENT, "launch.send: %s is no file and no folder that can be sent", path);
    rp_status status = RP_OK;
    for (const struct dirent *entry; status == RP_OK && (entry = readdir(folder));) {
        char below[POOL_PATH], below_name[POOL_PATH];
        if (is_left_out(entry->d_name))
            continue;
        if ((size_t)snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= sizeof below ||
            (size_t)snprintf(below_name, sizeof below_name, "%s/%s", name, entry->d_name) >= sizeof below_name)
            status = err_set(err, RP_INVALID_ARGUMENT, "launch.send: the path below %s is too long", path);
        else
            status = add_path(self, below, below_name, depth + 1, err);
    }
    closedir(folder);
    return status;
}

rp_status pool_find_files(struct host_pool *self, rp_error *err)
{
    const struct schema_list *send = &self->options.config->launch.send;
    char *const *list = send->data;
    if (!run_config_is_spread(self->options.config))
        return RP_OK;
    for (uint32_t i = 0; i < send->count; i++) {
        char path[POOL_PATH], name[POOL_PATH];
        const char *word = list[i] + (strncmp(list[i], "./", 2) == 0 ? 2 : 0);
        if ((size_t)snprintf(path, sizeof path, "%s/%s", self->options.here, word) >= sizeof path ||
            (size_t)snprintf(name, sizeof name, HERE_NAME "/%s", word) >= sizeof name)
            return err_set(err, RP_INVALID_ARGUMENT, "launch.send: the path %.100s... is too long", word);
        for (size_t end = strlen(name); end > 0 && name[end - 1] == '/'; end--)
            name[end - 1] = '\0';
        RP_TRY(add_path(self, path, name, 0, err));
    }
    return RP_OK;
}

void pool_free_files(struct host_pool *self)
{
    for (uint32_t i = 0; i < self->n_files; i++) {
        free(self->files[i].path);
        free(self->files[i].name);
    }
    free(self->files);
}

/* ---- greeting ---- */

static void send_file(struct pool_host *one, const char *path, const char *name)
{
    rp_error err = {0};
    char quoted[sizeof err.text * 2];
    if (host_send_file(one->host, path, name, &err) != RP_OK)
        log_line(LEVEL_WARN, "A0430", "a host does not get a file", "host=%s file=%s reason=%s", one->name, name,
                 log_quote(quoted, sizeof quoted, err.text));
}

static void send_key(struct host_pool *self, struct pool_host *one, enum role role)
{
    const char *word = role_names[role];
    char name[64];
    struct host_key key;
    rp_error err = {0};
    if (!self->options.keys || !self->options.keys->on || one->dropped)
        return;
    snprintf(name, sizeof name, RUN_KEYS_FOLDER "/%s.key", word);
    if (run_keys_of_host(self->options.keys, one->name, word, &key, &err) != RP_OK) {
        pool_drop(self, one, err.text);
        return;
    }
    memcpy(one->keys[role == ROLE_LEARNER], key.name, KEY_NAME);
    send_file(one, key.path, name);
}

static const char *weights_of(const struct run_config *config)
{
    return config->actors.on && config->actors.weights ? config->actors.weights : "";
}

void pool_greet(struct host_pool *self, struct pool_host *one)
{
    send_file(one, self->options.config_path, CONFIG_NAME);
    if (one->actors)
        send_key(self, one, ROLE_ACTOR);
    if (one->learners) /* a host without learners does not need what a learner may do */
        send_key(self, one, ROLE_LEARNER);
    if (one->actors && weights_of(self->options.config)[0])
        send_file(one, weights_of(self->options.config), WEIGHTS_NAME);
    for (uint32_t i = 0; i < self->n_files; i++)
        send_file(one, self->files[i].path, self->files[i].name);
}

void host_pool_config_changed(struct host_pool *self)
{
    for (uint32_t i = 1; i < self->n; i++)
        if (host_pool_ready(self, i))
            send_file(self->hosts[i], self->options.config_path, CONFIG_NAME);
}

/* ---- endpoints ---- */

/* bound: as processes of this machine reach it. A broker that is bound to one address is reached there, unless the file
 * advertises another. */
static void map_endpoint(const struct host_pool *self, const struct pool_host *one, const char *configured,
                         const char *bound, char *out, size_t size)
{
    const struct broker_config *broker = &self->options.config->broker;
    const char *port = strrchr(bound, ':');
    char open[300], address[HOST_NAME + 3];
    if (endpoint_is_any(configured) && port) {
        snprintf(open, sizeof open, "tcp://*%s", port);
        host_home_address(one->host, broker, address, sizeof address);
        endpoint_with_host(open, address, out, size);
    } else {
        endpoint_with_host(bound, broker->advertise, out, size);
    }
}

static void map_endpoints(const struct host_pool *self, struct pool_host *one, const struct endpoints *bound)
{
    const struct broker_config *broker = &self->options.config->broker;
    struct endpoints *out = &one->endpoints;
    map_endpoint(self, one, broker->service, bound->service, out->service, sizeof out->service);
    map_endpoint(self, one, broker->ingest, bound->ingest, out->ingest, sizeof out->ingest);
    map_endpoint(self, one, broker->events, bound->events, out->events, sizeof out->events);
}

/* ---- overrides ---- */

/* Writes "key='path'"; quotes within are doubled, as in YAML. */
static void write_override(char *out, size_t size, const char *key, const char *path)
{
    size_t used = (size_t)snprintf(out, size, "%s='", key);
    for (; *path && used + 4 < size; path++) {
        if (*path == '\'')
            out[used++] = '\'';
        out[used++] = *path;
    }
    snprintf(out + used, size - used, "'");
}

/* The part of a path below a folder; NULL: the path is elsewhere. */
static const char *below(const char *path, const char *folder)
{
    size_t size = strlen(folder);
    return size > 0 && strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == '\0') ? path + size
                                                                                                     : NULL;
}

static void map_overrides(const struct host_pool *self, struct pool_host *one, const struct command_context *base,
                          const char *work)
{
    const struct run_config *config = base->config;
    const char *plugin = config->environment.plugin ? config->environment.plugin : "";
    uint32_t n = 0, own = 0;
    char path[PATH_MAX + POOL_PATH], real[PATH_MAX];
    while (base->overrides && base->overrides[n])
        n++;
    const char **list = realloc(one->overrides, (n + POOL_OVERRIDES + 1) * sizeof *list);
    if (!list)
        return; /* the overrides of before hold */
    one->overrides = list;
    for (uint32_t i = 0; i < n; i++)
        list[i] = base->overrides[i];
    if (weights_of(config)[0]) {
        snprintf(path, sizeof path, "%s/" WEIGHTS_NAME, work);
        write_override(one->own_overrides[own], sizeof one->own_overrides[own], "actors.weights", path);
        list[n++] = one->own_overrides[own++];
    }
    if (plugin[0] && realpath(plugin, real)) { /* beside the run's file, or at the same path there */
        const char *rest = below(real, self->options.here);
        snprintf(path, sizeof path, "%s%s", rest ? one->here : "", rest ? rest : real);
        write_override(one->own_overrides[own], sizeof one->own_overrides[own], "environment.plugin", path);
        list[n++] = one->own_overrides[own++];
    }
    list[n] = NULL;
}

void pool_free_context(struct pool_host *one)
{
    free(one->overrides);
}

/* ---- the context ---- */

void host_pool_context(struct host_pool *self, uint32_t index, const struct command_context *base,
                       struct command_context *out)
{
    struct pool_host *one = self->hosts[index];
    *out = *base;
    if (index == HOST_POOL_HOME || one->greeted == 0)
        return;
    const struct host_facts *facts = host_facts(one->host);
    const char *rest = below(base->folder, self->options.folder);
    snprintf(one->config_path, sizeof one->config_path, "%s/" CONFIG_NAME, facts->work);
    snprintf(one->folder, sizeof one->folder, "%s%s", base->folder[0] ? facts->work : "", rest ? rest : "");
    if (self->n_files > 0)
        snprintf(one->here, sizeof one->here, "%s/" HERE_NAME, facts->work);
    else
        snprintf(one->here, sizeof one->here, "%s", facts->here);
    one->run_keys = (struct run_keys){.on = base->keys && base->keys->on};
    snprintf(one->run_keys.folder, sizeof one->run_keys.folder, "%s/" RUN_KEYS_FOLDER, facts->work);
    if (base->endpoints)
        map_endpoints(self, one, base->endpoints);
    map_overrides(self, one, base, facts->work);
    out->programs = facts->programs;
    out->config_path = one->config_path;
    out->here = one->here;
    out->folder = one->folder;
    out->endpoints = base->endpoints ? &one->endpoints : NULL;
    out->endpoints_file = "";
    out->keys = &one->run_keys;
    out->overrides = one->overrides ? one->overrides : base->overrides;
    out->elsewhere = true;
    out->python = facts->python;
}
