/* What was measured before: one file for each configuration, build and kinds of machines. The file holds the whole key, so
 * a damaged file, or one whose name belongs to another key by chance, is only a miss. */
#include <json-c/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/plan/profile_cache.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

#define VERSION 9

/* ---- the key ---- */

/* Keys that do not matter for speed. */
static const char *const ignored[] = {"name", "seed", "folder", "stop", "launch", "report", "hosts", NULL};
/* The throw-away broker has its own values for these. */
static const char *const ignored_of_broker[] = {"service", "ingest",     "events",  "seed",      "log", "http",
                                                "journal", "checkpoint", "storage", "advertise", NULL};

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

static void add_config(const struct run_config *config, FILE *out)
{
    char *text = NULL;
    size_t size = 0;
    FILE *print = open_memstream(&text, &size);
    schema_print(run_schema(), config, print);
    fclose(print);
    filter_config(text, out);
    free(text);
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

char *profile_key(const struct profile_options *options, const char *machines)
{
    static const char *const programs[] = {"replay-broker", "replay-actor", "replay-learner"};
    char *text = NULL, path[PATH_MAX];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    fprintf(out, "profile %d\n%s", VERSION, machines);
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", options->programs, programs[i]);
        add_file(path, out);
    }
    add_python(&options->config->environment, options->here, out);
    add_command(&options->config->actors.command, options->here, out);
    add_command(&options->config->learners.command, options->here, out);
    add_config(options->config, out);
    fclose(out);
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

/* Fills in the folder of the cache and the name of a key's file. False: there is no place for a cache. */
static bool find_place(const char *key, char folder[FOLDER_SIZE], char name[48])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool set = cache && cache[0] == '/';
    if (!set && !(home && home[0] == '/'))
        return false;
    snprintf(name, 48, "profile-%016llx.json", (unsigned long long)profile_hash(key));
    return (size_t)snprintf(folder, FOLDER_SIZE, "%s%s/replay", set ? cache : home, set ? "" : "/.cache") < FOLDER_SIZE;
}

bool profile_load(const char *key, struct plan_input *out)
{
    char folder[FOLDER_SIZE], name[48];
    char *text = find_place(key, folder, name) ? run_folder_read(folder, name) : NULL;
    struct json_object *root = text ? json_tokener_parse(text) : NULL, *held = NULL;
    *out = (struct plan_input){0};
    bool ok = json_object_object_get_ex(root, "key", &held) && json_object_is_type(held, json_type_string) &&
              strcmp(json_object_get_string(held), key) == 0 && plan_input_from_json(text, out);
    json_object_put(root);
    free(text);
    return ok;
}

static void make_folders(const char *path)
{
    char part[FOLDER_SIZE];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(part, 0755);
        *slash = '/';
    }
    mkdir(part, 0755);
}

rp_status profile_store(const char *key, const struct plan_input *input, rp_error *err)
{
    char folder[FOLDER_SIZE], name[48];
    if (!find_place(key, folder, name))
        return err_set(err, RP_IO, "there is no place for a cache: neither XDG_CACHE_HOME nor HOME is a folder's name");
    char *text = plan_to_json(NULL, input);
    struct json_object *root = json_tokener_parse(text);
    json_object_object_add(root, "key", json_object_new_string(key));
    make_folders(folder);
    rp_status status =
        run_folder_write(folder, name, json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY), err);
    json_object_put(root);
    free(text);
    return status;
}
