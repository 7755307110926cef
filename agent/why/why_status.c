/* The verdict that a run's launcher has written into status.json. */
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "agent/why/why.h"

/* A launcher writes its status every second. */
#define FRESH_S 5.0

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

static bool is_fresh(struct json_object *status)
{
    struct json_object *value = NULL;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return json_object_object_get_ex(status, "unix_s", &value) &&
           fabs((double)now.tv_sec + 1e-9 * (double)now.tv_nsec - json_object_get_double(value)) < FRESH_S;
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
