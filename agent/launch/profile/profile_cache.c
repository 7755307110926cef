/* Curves that were measured before: one file for each configuration, build and kinds of machines. The file holds the whole key, so
 * a damaged file, or one whose name belongs to another key by chance, is only a miss. */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/process/machine.h"
#include "agent/launch/profile/profile.h"
#include "agent/launch/profile/profile_cache.h"
#include "agent/launch/profile/profile_hosts.h"
#include "proto/base/error.h"

#define VERSION 7
#define MOST_BYTES (4 << 20)

/* ---- the key ---- */

/* Keys that do not matter for speed. */
static const char *const ignored[] = {"name", "seed", "folder", "stop", "launch", "report", "hosts", NULL};
/* The throw-away broker has its own values for these. */
static const char *const ignored_of_broker[] = {"service",    "ingest",  "events",    "endpoints_file",
                                                "seed",       "log",     "http",      "journal",
                                                "checkpoint", "storage", "advertise", NULL};

static bool is_key(const char *line, const char *const *names)
{
    size_t length = strcspn(line, ":");
    for (; line[length] == ':' && *names; names++)
        if (strlen(*names) == length && strncmp(line, *names, length) == 0)
            return true;
    return false;
}

/* Copies the lines that matter from a printed configuration; looks at two levels of keys. */
static void filter_config(const char *text, FILE *out)
{
    bool skip = false, skip_inner = false, broker = false;
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n"), indent = strspn(line, " ");
        bool empty = indent >= length || line[indent] == '#';
        if (!empty && indent == 0) {
            skip = is_key(line, ignored);
            broker = strncmp(line, "broker:", 7) == 0;
            skip_inner = false;
        } else if (!empty && indent == 2 && line[2] != '-') {
            skip_inner = broker && is_key(line + 2, ignored_of_broker);
        }
        if (!empty && !skip && !skip_inner)
            fprintf(out, "%.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static bool add_config(const struct run_config *config, FILE *out)
{
    char *text = NULL;
    size_t size = 0;
    FILE *print = open_memstream(&text, &size);
    if (!print)
        return false;
    schema_print(run_schema(), config, print);
    bool ok = fclose(print) == 0;
    if (ok)
        filter_config(text, out);
    free(text);
    return ok;
}

/* A changed file has another size or time. */
static void add_file(const char *path, FILE *out)
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
        add_file(path, out);
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
    add_file(path, out);
    strcpy(path + used, "/__init__.py");
    add_file(path, out);
}

char *profile_key(const struct profile_options *options)
{
    static const char *const programs[] = {"replay-broker", "replay-actor", "replay-learner"};
    char *text = NULL, path[PATH_MAX];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    fprintf(out, "profile %d\n", VERSION);
    profile_hosts_key(options, out);
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", options->programs, programs[i]);
        add_file(path, out);
    }
    add_python(&options->config->environment, options->here, out);
    add_command(&options->config->actors.command, options->here, out);
    add_command(&options->config->learners.command, options->here, out);
    bool ok = add_config(options->config, out);
    ok = fclose(out) == 0 && ok;
    if (!ok) {
        free(text);
        return NULL;
    }
    return text;
}

uint64_t profile_hash(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *text; text++)
        hash = (hash ^ (uint64_t)(unsigned char)*text) * UINT64_C(1099511628211);
    return hash;
}

/* ---- the file ---- */

/* False: there is no place for a cache. */
static bool find_place(const char *key, char *folder, size_t folder_size, char *path, size_t path_size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (cache && cache[0] == '/')
        length = snprintf(folder, folder_size, "%s/replay", cache);
    else if (home && home[0] == '/')
        length = snprintf(folder, folder_size, "%s/.cache/replay", home);
    else
        return false;
    if (length < 0 || (size_t)length >= folder_size)
        return false;
    length = snprintf(path, path_size, "%s/profile-%016llx.json", folder, (unsigned long long)profile_hash(key));
    return length > 0 && (size_t)length < path_size;
}

static char *read_text(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size < MOST_BYTES &&
        (text = malloc((size_t)status.st_size + 1))) {
        ssize_t n = read(fd, text, (size_t)status.st_size);
        text[n > 0 ? n : 0] = '\0';
    }
    if (fd >= 0)
        close(fd);
    return text;
}

/* plan_input_from_json has checked the counts. */
static bool is_finite(const struct plan_curve *curve)
{
    for (uint32_t i = 0; i < curve->n; i++) {
        const struct plan_point *point = &curve->points[i];
        if (!isfinite(point->rate) || point->rate < 0 || !isfinite(point->cpu) || !isfinite(point->broker_cpu) ||
            !isfinite(point->memory))
            return false;
    }
    return true;
}

static bool all_finite(const struct plan_input *input)
{
    bool ok = is_finite(&input->actors) && is_finite(&input->learners);
    for (uint32_t i = 0; i < input->n_hosts; i++)
        ok = ok && is_finite(&input->hosts[i].curve);
    return ok;
}

bool profile_load(const char *key, struct plan_input *out)
{
    char folder[PATH_MAX - 64], path[PATH_MAX];
    char *text = find_place(key, folder, sizeof folder, path, sizeof path) ? read_text(path) : NULL;
    struct json_object *root = text ? json_tokener_parse(text) : NULL, *held = NULL, *input = NULL;
    struct plan_input read = {0};
    bool ok = json_object_object_get_ex(root, "key", &held) && json_object_is_type(held, json_type_string) &&
              strcmp(json_object_get_string(held), key) == 0 && json_object_object_get_ex(root, "profile", &input) &&
              plan_input_from_json(json_object_to_json_string(input), &read) && all_finite(&read);
    if (ok)
        *out = read;
    else
        plan_input_free(&read);
    json_object_put(root);
    free(text);
    return ok;
}

static void make_folders(const char *path)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(part, 0755);
        *slash = '/';
    }
    mkdir(part, 0755);
}

static rp_status write_whole(const char *path, const char *text, rp_error *err)
{
    char other[PATH_MAX + 32];
    snprintf(other, sizeof other, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(other, "we");
    bool ok = file && fputs(text, file) >= 0;
    if (file)
        ok = fclose(file) == 0 && ok;
    ok = ok && rename(other, path) == 0;
    if (ok)
        return RP_OK;
    int error = errno;
    if (file)
        unlink(other);
    return err_set(err, RP_IO, "%s could not be written: %s", path, strerror(error));
}

static char *cache_text(const char *key, const struct plan_input *input)
{
    char *plan = plan_to_json(NULL, input), *text = NULL;
    struct json_object *root = json_object_new_object(), *profile = plan ? json_tokener_parse(plan) : NULL;
    if (root && profile) {
        json_object_object_add(root, "key", json_object_new_string(key));
        json_object_object_add(root, "profile", json_object_get(profile));
        text = strdup(json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY));
    }
    json_object_put(profile);
    json_object_put(root);
    free(plan);
    return text;
}

rp_status profile_store(const char *key, const struct plan_input *input, rp_error *err)
{
    char folder[PATH_MAX - 64], path[PATH_MAX];
    if (!find_place(key, folder, sizeof folder, path, sizeof path))
        return err_set(err, RP_IO, "there is no place for a cache: neither XDG_CACHE_HOME nor HOME is a folder's name");
    char *text = cache_text(key, input);
    if (!text)
        return err_set(err, RP_NO_MEMORY, "no memory to keep what was measured");
    make_folders(folder);
    rp_status status = write_whole(path, text, err);
    free(text);
    return status;
}
