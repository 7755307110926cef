#include "agent/launch/report/runs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <json-c/json.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/launch/observe/status.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/json_map.h"

#define MOST_RUNS 100000u
#define MOST_DEPTH 32

/* ---- a folder and everything in it ---- */

/* These files mark a folder as a run, and as a run that a launcher works on. */
static bool is_known_by(const char *file)
{
    return strcmp(file, FOLDER_STATE) == 0 || strcmp(file, FOLDER_LOCK) == 0;
}

/* True for the files of a broker (docs/OPERATE.md). */
static bool is_table(const char *file)
{
    return fnmatch("segment-*.replay", file, 0) == 0 || fnmatch("checkpoint-*.replay*", file, 0) == 0;
}

enum removal { REMOVE_NOTHING, REMOVE_TABLES, REMOVE_ALL };

/* Adds up the bytes of a folder, and removes its contents; in the topmost folder the files that mark a run stay. */
static bool walk(int parent, const char *name, enum removal what, int depth, struct run_summary *sum)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    bool ok = dir != NULL;
    if (!dir && fd >= 0)
        close(fd);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat st;
        const char *file = entry->d_name;
        if (strcmp(file, ".") == 0 || strcmp(file, "..") == 0 || fstatat(fd, file, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        uint64_t bytes = (uint64_t)st.st_blocks * 512u;
        bool table = S_ISREG(st.st_mode) && is_table(file);
        sum->bytes += bytes;
        sum->tables += table ? bytes : 0;
        if (S_ISDIR(st.st_mode))
            ok &= depth < MOST_DEPTH && walk(fd, file, what, depth + 1, sum) &&
                  (what != REMOVE_ALL || unlinkat(fd, file, AT_REMOVEDIR) == 0);
        else if (what == REMOVE_TABLES ? table : what == REMOVE_ALL && !(depth == 0 && is_known_by(file)))
            ok &= unlinkat(fd, file, 0) == 0;
    }
    if (dir)
        closedir(dir);
    return ok;
}

rp_status runs_remove(const char *folder, rp_error *err)
{
    int lock = -1;
    struct run_summary sum = {0};
    char path[FOLDER_SIZE + 32];
    RP_TRY(run_folder_lock(folder, &lock, err));
    /* The lock goes last: as long as the run exists, no other launcher can begin to work on it. */
    bool ok = walk(AT_FDCWD, folder, REMOVE_ALL, 0, &sum) &&
              unlink(run_folder_path(path, sizeof path, folder, FOLDER_STATE)) == 0 &&
              unlink(run_folder_path(path, sizeof path, folder, FOLDER_LOCK)) == 0 && rmdir(folder) == 0;
    int error = errno;
    close(lock);
    return ok ? RP_OK : err_set(err, RP_IO, "'%s' cannot be removed: %s", folder, strerror(error));
}

rp_status runs_remove_tables(const char *folder, rp_error *err)
{
    int lock = -1;
    struct run_summary sum = {0};
    RP_TRY(run_folder_lock(folder, &lock, err));
    bool ok = walk(AT_FDCWD, folder, REMOVE_TABLES, 0, &sum);
    int error = errno;
    close(lock);
    return ok ? RP_OK : err_set(err, RP_IO, "the tables in '%s' cannot be removed: %s", folder, strerror(error));
}

/* ---- one run ---- */

#define SUMMARY(title, member) JSON_ROW_AS(title, struct run_summary, member, NAN)

/* What report.json says about a run and its first stretch. */
static const struct json_row report_rows[] = {
    SUMMARY("exit", result),           SUMMARY("final_value", final_value),
    SUMMARY("final_weights", weights), SUMMARY("best", best),
    SUMMARY("steps", steps),           SUMMARY("learner_steps", learner_steps),
    SUMMARY("wall_seconds", seconds),  SUMMARY("actors", actors),
    SUMMARY("learners", learners),     {0},
};
static const struct json_row achieved_rows[] = {SUMMARY("inserts", inserts), SUMMARY("samples", samples), {0}};

static bool take_report(struct run_summary *out)
{
    static const char *const values[] = {"value", "actor_value"};
    json_object *achieved = NULL, *value = NULL;
    char *text = run_folder_read(out->folder, "report.json");
    json_object *root = text ? json_tokener_parse(text) : NULL;
    free(text);
    bool ok = json_object_is_type(root, json_type_object);
    if (ok)
        json_map_read(root, report_rows, out);
    for (uint32_t i = 0; ok && i < 2 && isnan(out->final_value); i++)
        if (json_object_object_get_ex(root, values[i], &value))
            out->final_value = json_map_real(value, NAN);
    if (ok && json_object_object_get_ex(root, "achieved", &achieved))
        json_map_read(achieved, achieved_rows, out);
    json_object_put(root);
    return ok;
}

/* Reads the status of a run that still goes on, ended before it had a report, or was lost. */
static void take_status(struct run_summary *out)
{
    struct status_copy copy;
    const char *result = out->active ? "running" : "lost";
    char *text = run_folder_read(out->folder, FOLDER_STATUS);
    if (text && status_from_json(text, &copy)) {
        const struct status *s = &copy.status;
        out->final_value = isnan(s->value) ? s->actor_value : s->value;
        out->best = s->best;
        out->steps = s->steps;
        out->learner_steps = s->learner_steps;
        out->seconds = s->elapsed_s;
        out->actors = s->actors_wanted;
        out->learners = s->learners_wanted;
        out->inserts = s->inserts_rate;
        out->samples = s->samples_rate;
        if (!out->active && s->phase >= PHASE_DONE)
            result = phase_name(s->phase);
        status_copy_fini(&copy);
    }
    free(text);
    snprintf(out->result, sizeof out->result, "%s", result);
}

/* config.yaml is printed by the launcher: each key is alone on its line. */
static void take_seed(struct run_summary *out)
{
    char *text = run_folder_read(out->folder, FOLDER_CONFIG);
    const char *found = text ? strstr(text, "\nseed: ") : NULL;
    if (found)
        snprintf(out->seed, sizeof out->seed, "%.*s", (int)strcspn(found + 7, " \r\n#"), found + 7);
    free(text);
}

bool runs_read(const char *folder, struct run_summary *out)
{
    char path[FOLDER_SIZE + 32];
    struct stat state, report;
    *out = (struct run_summary){.final_value = NAN, .best = NAN, .inserts = NAN, .samples = NAN, .seconds = NAN};
    if (strlen(folder) >= FOLDER_SIZE - 64 ||
        stat(run_folder_path(path, sizeof path, folder, FOLDER_STATE), &state) != 0)
        return false;
    snprintf(out->folder, sizeof out->folder, "%s", folder);
    const char *slash = strrchr(folder, '/');
    snprintf(out->name, sizeof out->name, "%.127s", slash && slash[1] ? slash + 1 : folder);
    out->active = run_folder_locked(folder);
    out->changed_ns = (int64_t)state.st_mtim.tv_sec * NS_PER_S + state.st_mtim.tv_nsec;
    /* The report of an earlier leg says nothing about a run that was lost or still goes on. */
    bool told = stat(run_folder_path(path, sizeof path, folder, "report.json"), &report) == 0 &&
                (int64_t)report.st_mtim.tv_sec * NS_PER_S + report.st_mtim.tv_nsec >= out->changed_ns;
    if (out->active || !told || !take_report(out))
        take_status(out);
    take_seed(out);
    walk(AT_FDCWD, folder, REMOVE_NOTHING, 0, out);
    return true;
}

/* ---- all of them ---- */

static int newest_first(const void *a, const void *b)
{
    const struct run_summary *x = a, *y = b;
    return x->changed_ns != y->changed_ns ? (x->changed_ns < y->changed_ns ? 1 : -1) : strcmp(y->name, x->name);
}

struct run_summary *runs_list(const char *runs, uint32_t *n)
{
    struct run_summary *list = NULL;
    uint32_t capacity = 0;
    DIR *dir = opendir(runs);
    *n = 0;
    for (const struct dirent *entry; dir && *n < MOST_RUNS && (entry = readdir(dir));) {
        char path[FOLDER_SIZE];
        struct stat st;
        if (entry->d_name[0] == '.' ||
            (size_t)snprintf(path, sizeof path, "%s/%s", runs, entry->d_name) >= sizeof path - 64 ||
            lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) /* a link is another name for a run */
            continue;
        if (*n == capacity) {
            uint32_t more = capacity ? 2 * capacity : 64;
            struct run_summary *larger = realloc(list, more * sizeof *list);
            if (!larger)
                break;
            list = larger;
            capacity = more;
        }
        *n += runs_read(path, &list[*n]);
    }
    if (dir)
        closedir(dir);
    if (*n > 1)
        qsort(list, *n, sizeof *list, newest_first);
    return list;
}
