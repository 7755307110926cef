/* Where the broker is, and what there is to say if it does not answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ctl/ctl.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/keys/keys.h"

/* Largest status.json that is read. */
#define STATUS_MOST (1u << 20)

char *ctl_read_status(const struct ctl *ctl)
{
    FILE *file = ctl->status[0] ? fopen(ctl->status, "re") : NULL;
    char *text = file ? calloc(1, STATUS_MOST + 1) : NULL;
    if (text)
        text[fread(text, 1, STATUS_MOST, file)] = '\0';
    if (file)
        fclose(file);
    return text;
}

/* Reads the state of the run that was named. False: none was, or it has written no state. */
static bool read_run(const struct ctl *ctl, struct why_state *out)
{
    char *text = ctl_read_status(ctl);
    bool ok = text && why_read_state(text, out);
    free(text);
    return ok;
}

/* Returns 0 unless the run is over: then nobody needs to wait for its broker. */
static int check_run(const struct ctl *ctl, const char *folder)
{
    struct why_state state;
    char when[32];
    rp_error err = {0};
    if (!read_run(ctl, &state) || !state.ended)
        return 0;
    ctl_when(when, sizeof when, (int64_t)(state.unix_s * 1e9));
    const char *name = strrchr(folder, '/') ? strrchr(folder, '/') + 1 : folder;
    err_set(
        &err, RP_UNAVAILABLE,
        "the run in %s has ended (%s at %s%s%s), and its broker with it: %s/report.html is its report, 'replay-launch "
        "runs' lists all runs, and 'replay-launch resume %s' goes on with it",
        folder, state.phase, when, state.reason[0] ? ": " : "", state.reason, folder, name);
    return ctl_fail(ctl, &err);
}

/* A run's folder has the endpoints of its broker and, if the broker wants keys, a key for its owner. */
static int find_run(struct ctl *ctl, const char *run, char **out)
{
    char folder[700], file[800], key[800];
    rp_error err = {0};
    bool name = !strchr(run, '/') && access(run, F_OK) != 0;
    if (!name || strcmp(run, "latest") != 0 || !why_find_living("runs", folder, sizeof folder))
        snprintf(folder, sizeof folder, "%s%.600s", name ? "runs/" : "", run);
    snprintf(file, sizeof file, "%s/endpoints", folder);
    snprintf(key, sizeof key, "%s/keys/admin.key", folder);
    snprintf(ctl->status, sizeof ctl->status, "%s/status.json", folder);
    if (access(folder, F_OK) != 0)
        return ctl_usage("there is no folder %s: 'replay-launch runs' lists the runs below runs/", folder);
    int rc = check_run(ctl, folder);
    if (rc != 0)
        return rc;
    if (access(file, R_OK) != 0)
        return ctl_usage("there is no %s: the broker of that run has not started yet, or this is no folder of a run",
                         file);
    if (!getenv(KEY_FILE_VARIABLE) && access(key, R_OK) == 0)
        setenv(KEY_FILE_VARIABLE, key, 1);
    return endpoints_from_file(file, out, &err) == RP_OK ? 0 : ctl_usage("%s", err.text);
}

int ctl_find(struct ctl *ctl, const struct ctl_place *place, char **out)
{
    const char *environment = getenv("REPLAY_ENDPOINT");
    if (!!place->endpoint + !!place->file + !!place->run > 1)
        return ctl_usage("--endpoint, --endpoints-file and --run exclude each other");
    rp_error err = {0};
    if (place->run)
        return find_run(ctl, place->run, out);
    if (place->file)
        return endpoints_from_file(place->file, out, &err) == RP_OK ? 0 : ctl_usage("%s", err.text);
    *out = strdup(place->endpoint ? place->endpoint : environment && environment[0] ? environment : ENDPOINT_DEFAULT);
    return *out ? 0 : CTL_REFUSED;
}

int ctl_unreachable(const struct ctl *ctl, const char *endpoint)
{
    format_buffer waited;
    char hint[160] = "is replay-broker running, and is this its service endpoint?", when[32];
    rp_error err = {0};
    struct why_state state;
    if (read_run(ctl, &state)) {
        ctl_when(when, sizeof when, (int64_t)(state.unix_s * 1e9));
        snprintf(hint, sizeof hint, "the last status of the run is '%s', of %s; 'replay-launch status' says more",
                 state.phase, when);
    } else if (strcmp(endpoint, ENDPOINT_DEFAULT) == 0 && access("runs/latest/endpoints", R_OK) == 0) {
        snprintf(hint, sizeof hint, "is replay-broker running? For the broker of a run: --run latest");
    }
    err_set(&err, RP_UNAVAILABLE, "no broker answers at %s (waited %s): %s", endpoint,
            format_time(waited, (uint64_t)ctl->timeout_ms * 1000000), hint);
    return ctl_fail(ctl, &err);
}
