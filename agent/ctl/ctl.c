/* What all commands share: results and errors, where the broker is, what there is to say if it does not answer, and shards that say
 * nothing. */
#include "agent/ctl/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/io.h"
#include "proto/base/need.h"
#include "proto/keys/keys.h"

/* ---- results ---- */

int ctl_fail(const struct ctl *ctl)
{
    const rp_error *err = &ctl->err;
    char clean[sizeof err->text];
    bool silent = err->status == RP_UNAVAILABLE || err->status == RP_DEADLINE_EXCEEDED;
    if (ctl->json) {
        struct json json = {0};
        json_open(&json, '{');
        json_begin(&json, "error", '{');
        json_text(&json, "status", rp_status_name(err->status));
        json_text(&json, "text", err->text);
        json_close(&json, '}');
        json_close(&json, '}');
        ctl_print_text(&json);
    } else {
        fprintf(stderr, "replay-ctl: %s\n", format_clean(clean, sizeof clean, err->text));
    }
    return silent ? CTL_SILENT : CTL_REFUSED;
}

int ctl_print_text(struct json *json)
{
    char *text = json_need(json);
    int rc = puts(text) >= 0 && fflush(stdout) == 0 ? CTL_OK : CTL_REFUSED;
    free(text);
    return rc;
}

int ctl_print_json(const rp_info *info)
{
    struct json json = {0};
    json_message(&json, (const ProtobufCMessage *)info);
    return ctl_print_text(&json);
}

void ctl_when(char *out, size_t size, int64_t wall_ns)
{
    time_t seconds = (time_t)(wall_ns / NS_PER_S);
    struct tm parts;
    if (!gmtime_r(&seconds, &parts) || strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        snprintf(out, size, "-");
}

bool ctl_is_replaced(const char *path)
{
    struct stat info;
    return strcmp(path, "-") != 0 && (lstat(path, &info) != 0 || S_ISREG(info.st_mode));
}

rp_status ctl_write(const char *path, const void *data, size_t size, rp_error *err)
{
    bool standard = strcmp(path, "-") == 0, ok;
    fflush(stdout);
    if (ctl_is_replaced(path)) {
        ok = io_replace(path, data, size, 0666, false);
    } else {
        int fd = standard ? STDOUT_FILENO : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        ok = fd >= 0 && io_write(fd, data, size, IO_HERE);
        if (!standard && fd >= 0)
            close(fd);
    }
    return ok ? RP_OK : err_set(err, RP_IO, "%s cannot be written: %s", path, strerror(errno));
}

/* ---- the broker, and the run that it belongs to ---- */

/* Reads the state of the run that was named. False: none was, or it has written no state. */
static bool read_run(const struct ctl *ctl, struct why_state *out)
{
    char *text = why_read_file(ctl->status); /* "": none was named */
    bool ok = why_read_state(text, out);
    free(text);
    return ok;
}

/* Returns 0 unless the run is over: then nobody needs to wait for its broker. */
static int check_run(struct ctl *ctl, const char *folder)
{
    struct why_state state;
    char when[32];
    if (!read_run(ctl, &state) || !state.ended)
        return 0;
    ctl_when(when, sizeof when, (int64_t)(state.unix_s * 1e9));
    const char *name = strrchr(folder, '/') ? strrchr(folder, '/') + 1 : folder;
    err_set(
        &ctl->err, RP_UNAVAILABLE,
        "the run in %s has ended (%s at %s%s%s), and its broker with it: %s/report.html is its report, 'replay-launch "
        "runs' lists all runs, and 'replay-launch resume %s' goes on with it",
        folder, state.phase, when, state.reason[0] ? ": " : "", state.reason, folder, name);
    return ctl_fail(ctl);
}

/* A run's folder has the endpoints of its broker and, if the broker wants keys, a key for its owner. */
static int find_run(struct ctl *ctl, const char *run, char **out)
{
    char folder[700], file[800], key[800];
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
    return endpoints_from_file(file, out, &ctl->err) == RP_OK ? 0 : ctl_usage("%s", ctl->err.text);
}

int ctl_find(struct ctl *ctl, const struct ctl_place *place, char **out)
{
    const char *environment = getenv("REPLAY_ENDPOINT");
    if (!!place->endpoint + !!place->file + !!place->run > 1)
        return ctl_usage("--endpoint, --endpoints-file and --run exclude each other");
    if (place->run)
        return find_run(ctl, place->run, out);
    if (place->file)
        return endpoints_from_file(place->file, out, &ctl->err) == RP_OK ? 0 : ctl_usage("%s", ctl->err.text);
    *out = need_text(place->endpoint                 ? place->endpoint
                     : environment && environment[0] ? environment
                                                     : ENDPOINT_DEFAULT);
    return 0;
}

int ctl_unreachable(struct ctl *ctl, const char *endpoint)
{
    format_buffer waited;
    char hint[160], when[32];
    struct why_state state;
    if (read_run(ctl, &state)) {
        ctl_when(when, sizeof when, (int64_t)(state.unix_s * 1e9));
        snprintf(hint, sizeof hint, "the last status of the run is '%s', of %s; 'replay-launch status' says more",
                 state.phase, when);
    } else if (strcmp(endpoint, ENDPOINT_DEFAULT) == 0 && access("runs/latest/endpoints", R_OK) == 0) {
        snprintf(hint, sizeof hint, "is replay-broker running? For the broker of a run: --run latest");
    } else {
        return ctl_fail(ctl); /* the client has said what may be the reason */
    }
    err_set(&ctl->err, RP_UNAVAILABLE, "no broker answers at %s (waited %s): %s", endpoint,
            format_time(waited, (uint64_t)ctl->timeout_ms * 1000000), hint);
    return ctl_fail(ctl);
}

void ctl_explain(const struct ctl *ctl, const rp_info *info, const rp_info *waits, struct why *out)
{
    char *text = why_read_file(ctl->status);
    if (!why_read_status(text, out))
        why_explain(&(struct why_facts){.info = info, .waits = waits}, out);
    free(text);
}

/* ---- shards ---- */

uint32_t ctl_missing(const Replay__Shards *shards)
{
    uint32_t n = 0;
    for (size_t i = 0; shards && i < shards->n_shard; i++)
        n += shards->shard[i]->problem[0] != '\0';
    return n;
}

const char *ctl_totals(const Replay__Shards *shards, char *out, size_t size)
{
    uint32_t missing = ctl_missing(shards);
    out[0] = '\0';
    if (shards && missing)
        snprintf(out, size, "%zu of %zu shards", shards->n_shard - missing, shards->n_shard);
    else if (shards)
        snprintf(out, size, "%zu shards", shards->n_shard);
    return out;
}

void ctl_print_missing(const Replay__Shards *shards, const char *what, FILE *out)
{
    for (size_t i = 0; shards && i < shards->n_shard; i++) {
        char clean[512];
        if (shards->shard[i]->problem[0])
            fprintf(out, "%s%s: its %s missing here\n", out == stderr ? "replay-ctl: " : "",
                    format_clean(clean, sizeof clean, shards->shard[i]->problem), what);
    }
}

/* Parts of min_size differ by one at most, and bounds around min_size * samples_per_insert with them. */
static bool same_limiter(const Replay__LimiterInfo *a, const Replay__LimiterInfo *b)
{
    if (!a || !b)
        return true;
    double slack = fabs(a->samples_per_insert) * 1.001;
    if (a->batch > 0 && b->batch > 0) /* lag: parts of the batch differ, and the bounds with them */
        return round(a->max_diff / a->batch) == round(b->max_diff / b->batch);
    return a->samples_per_insert == b->samples_per_insert && fabs(a->min_size - b->min_size) <= 1 &&
           fabs(a->min_diff - b->min_diff) <= slack && fabs(a->max_diff - b->max_diff) <= slack;
}

/* The first shard that answers is what the others are compared with. */
static const Replay__TableInfo *first_table(const Replay__Shards *shards, const char *name, uint32_t *shard)
{
    for (size_t i = 0; i < shards->n_shard; i++)
        for (size_t k = 0; k < shards->shard[i]->n_tables; k++)
            if (strcmp(shards->shard[i]->tables[k]->name, name) == 0) {
                *shard = shards->shard[i]->shard;
                return shards->shard[i]->tables[k];
            }
    return NULL;
}

void ctl_print_differences(const Replay__Shards *shards)
{
    for (size_t i = 0; shards && i < shards->n_shard; i++)
        for (size_t k = 0; k < shards->shard[i]->n_tables; k++) {
            const Replay__TableInfo *table = shards->shard[i]->tables[k];
            uint32_t other = 0;
            char clean[256];
            const Replay__TableInfo *first = first_table(shards, table->name, &other);
            if (same_limiter(table->limiter, first->limiter))
                continue;
            format_clean(clean, sizeof clean, table->name);
            printf("shard %u has another limiter of %s than shard %u (--shards shows them): set it once more for all "
                   "with 'replay-ctl limiter %s KEY=VALUE ...'\n",
                   shards->shard[i]->shard, clean, other, clean);
        }
}
