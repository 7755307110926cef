/* The verdict that a run's launcher has written into status.json. */
#include <dirent.h>
#include <json-c/json.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/why/why.h"

/* A launcher writes its status every second. */
#define FRESH_S 5.0
/* A launcher whose status is older is gone. */
#define GONE_S 60.0
/* Largest status.json that is read. */
#define STATUS_MOST (1u << 20)

static const char *text_of(struct json_object *status, const char *name)
{
    struct json_object *value = NULL;
    const char *text = json_object_object_get_ex(status, name, &value) && json_object_is_type(value, json_type_string)
                           ? json_object_get_string(value)
                           : NULL;
    return text ? text : "";
}

/* Returns the index of a word, or n. */
static int find(const char *const *words, int n, const char *word)
{
    int i = 0;
    while (i < n && strcmp(words[i], word) != 0)
        i++;
    return i;
}

static double age_s(double unix_s)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return fabs((double)now.tv_sec + 1e-9 * (double)now.tv_nsec - unix_s);
}

static bool is_fresh(struct json_object *status)
{
    struct json_object *value = NULL;
    return json_object_object_get_ex(status, "unix_s", &value) && age_s(json_object_get_double(value)) < FRESH_S;
}

bool why_read_status(const char *text, struct why *out)
{
    struct json_object *status = text ? json_tokener_parse(text) : NULL, *bad = NULL;
    int cause = find(why_cause_names, WHY_CAUSES, text_of(status, "cause"));
    int blocked = find(why_side_names, WHY_SIDES, text_of(status, "blocked"));
    bool ok = cause < WHY_CAUSES && text_of(status, "waits")[0] && is_fresh(status);
    *out = (struct why){.cause = (enum why_cause)(ok ? cause : WHY_IDLE), .network_rate = NAN};
    if (ok) {
        out->blocked = blocked < WHY_SIDES ? (enum why_side)blocked : WHY_NOBODY;
        out->bad = json_object_object_get_ex(status, "bad", &bad) && json_object_get_boolean(bad);
        snprintf(out->table, sizeof out->table, "%s", text_of(status, "blocked_table"));
        snprintf(out->text, sizeof out->text, "%s", text_of(status, "waits"));
        snprintf(out->advice, sizeof out->advice, "%s", text_of(status, "advice"));
    }
    json_object_put(status);
    return ok;
}

bool why_read_state(const char *text, struct why_state *out)
{
    static const char *const ends[] = {"done", "stopped", "failed"};
    struct json_object *status = text ? json_tokener_parse(text) : NULL, *time = NULL;
    *out = (struct why_state){0};
    snprintf(out->phase, sizeof out->phase, "%s", text_of(status, "phase"));
    snprintf(out->reason, sizeof out->reason, "%s", text_of(status, "reason"));
    bool ok = out->phase[0] && json_object_object_get_ex(status, "unix_s", &time);
    if (ok)
        out->unix_s = json_object_get_double(time);
    out->ended = ok && find(ends, 3, out->phase) < 3;
    json_object_put(status);
    return ok;
}

/* Returns the time of a run's status if the run lives, else 0. */
static double lives_since(const char *folder)
{
    char path[PATH_MAX];
    struct why_state state = {0};
    snprintf(path, sizeof path, "%s/status.json", folder);
    FILE *file = fopen(path, "re");
    char *text = file ? calloc(1, STATUS_MOST + 1) : NULL;
    if (text)
        text[fread(text, 1, STATUS_MOST, file)] = '\0';
    bool lives = text && why_read_state(text, &state) && !state.ended && age_s(state.unix_s) < GONE_S;
    free(text);
    if (file)
        fclose(file);
    return lives ? state.unix_s : 0.0;
}

bool why_find_living(const char *runs, char *out, size_t size)
{
    char path[PATH_MAX], latest[NAME_MAX + 1] = "";
    double newest = 0.0;
    snprintf(path, sizeof path, "%s/latest", runs);
    ssize_t n = readlink(path, latest, sizeof latest - 1);
    latest[n > 0 ? n : 0] = '\0';
    snprintf(path, sizeof path, "%s/latest/status.json", runs);
    if (n > 0 && access(path, F_OK) != 0) /* it is being measured, or waits for its turn */
        return false;
    DIR *dir = opendir(runs);
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "latest") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", runs, entry->d_name);
        double since = lives_since(path);
        if (since > 0.0 && strcmp(entry->d_name, latest) == 0)
            since = INFINITY;
        if (since > newest && strlen(path) < size) {
            newest = since;
            strcpy(out, path);
        }
    }
    if (dir)
        closedir(dir);
    return newest > 0.0;
}
