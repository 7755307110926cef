#include "agent/launch/process/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/view/why.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/json_map.h"

#define LOGS "logs"
/* Runs of the same name that may begin within one second. */
#define MAX_TWINS 100
#define MAX_FILE (INT64_C(64) << 20)
/* A launcher writes the status every second; a file system of several machines may show it later. */
#define FRESH_S 30
/* Items, weights and logs are for the user alone, unless the user makes the folder, or changes its mode. */
#define RUN_MODE 0700

const char *run_folder_path(char *out, size_t size, const char *folder, const char *file)
{
    snprintf(out, size, "%s/%s", folder, file);
    return out;
}

/* ---- making and finding ---- */

static rp_status make(const char *path, mode_t mode, rp_error *err)
{
    if (mkdir(path, mode) == 0 || errno == EEXIST)
        return RP_OK;
    return err_set(err, RP_IO, "the folder '%s' cannot be made: %s", path, strerror(errno));
}

rp_status run_folder_cache(char out[FOLDER_SIZE], rp_error *err)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool set = cache && cache[0] == '/';
    if (!set && !(home && home[0] == '/'))
        return err_set(err, RP_IO, "there is no place for a cache: neither XDG_CACHE_HOME nor HOME is a folder's name");
    if ((size_t)snprintf(out, FOLDER_SIZE, "%s%s/replay", set ? cache : home, set ? "" : "/.cache") >= FOLDER_SIZE - 64)
        return err_set(err, RP_IO, "the path of the cache is too long");
    return RP_OK;
}

rp_status run_folder_make(const char *path, mode_t mode, rp_error *err)
{
    char part[FOLDER_SIZE];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        RP_TRY(make(part, 0777, err));
    }
    return make(path, mode, err);
}

/* Makes a file name of a run's name: unusual characters become dashes. */
static void clean_name(const char *name, char *out, size_t size)
{
    size_t n = 0;
    for (; name[n] && n + 1 < size; n++) {
        bool plain = strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", name[n]) != NULL;
        out[n] = plain && !(n == 0 && name[n] == '.') ? name[n] : '-';
    }
    out[n] = '\0';
}

static rp_status create_below(const char *runs, const char *name, char out[FOLDER_SIZE], rp_error *err)
{
    char clean[160], stamp[32], base[256];
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
    clean_name(name, clean, sizeof clean);
    RP_TRY(run_folder_make(runs, 0777, err));
    for (int twin = 1; twin <= MAX_TWINS; twin++) {
        int n = twin == 1 ? snprintf(base, sizeof base, "%s-%s", clean, stamp)
                          : snprintf(base, sizeof base, "%s-%s-%d", clean, stamp, twin);
        if (strlen(runs) + (size_t)n + 2 > FOLDER_SIZE - 64)
            return err_set(err, RP_INVALID_ARGUMENT, "the path of the run's folder is too long: %s/%s", runs, base);
        snprintf(out, FOLDER_SIZE, "%s/%s", runs, base);
        if (mkdir(out, RUN_MODE) == 0)
            return RP_OK;
        if (errno != EEXIST)
            break;
    }
    return err_set(err, RP_IO, "the folder '%s' cannot be made: %s", out, strerror(errno));
}

static rp_status create_given(const char *given, char out[FOLDER_SIZE], rp_error *err)
{
    if (strlen(given) > FOLDER_SIZE - 64)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the run's folder is too long: %s", given);
    snprintf(out, FOLDER_SIZE, "%s", given);
    if (run_folder_holds(given))
        return err_set(
            err, RP_FAILED_PRECONDITION,
            "the folder '%s' holds a run already: go on with it by 'replay-launch resume %s', or name another", given,
            given);
    return run_folder_make(given, RUN_MODE, err);
}

rp_status run_folder_create(const char *runs, const char *name, const char *given, char out[FOLDER_SIZE], rp_error *err)
{
    char logs[FOLDER_SIZE + 16];
    RP_TRY(given && given[0] ? create_given(given, out, err) : create_below(runs, name, out, err));
    return make(run_folder_path(logs, sizeof logs, out, LOGS), 0777, err);
}

void run_folder_point_latest(const char *runs, const char *folder)
{
    char link[FOLDER_SIZE + 16], fresh[FOLDER_SIZE + 32];
    struct stat st;
    size_t length = strlen(runs);
    if (strncmp(folder, runs, length) != 0 || folder[length] != '/')
        return;
    run_folder_path(link, sizeof link, runs, FOLDER_LATEST);
    snprintf(fresh, sizeof fresh, "%s.%ld", link, (long)getpid());
    if (lstat(link, &st) == 0 && !S_ISLNK(st.st_mode)) /* a file of the user */
        return;
    if (symlink(folder + length + 1, fresh) == 0 && rename(fresh, link) != 0)
        unlink(fresh);
}

bool run_folder_holds(const char *folder)
{
    char state[FOLDER_SIZE + 32];
    return strlen(folder) < FOLDER_SIZE &&
           access(run_folder_path(state, sizeof state, folder, FOLDER_STATE), R_OK) == 0;
}

/* Follows a link to a neighbouring folder: runs/latest may soon point to another run. */
static void follow_link(char path[FOLDER_SIZE])
{
    char target[FOLDER_SIZE];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
    ssize_t n = readlink(path, target, sizeof target - 1);
    char *slash = strrchr(path, '/');
    size_t base = slash ? (size_t)(slash + 1 - path) : 0;
    if (n <= 0 || memchr(target, '/', (size_t)n) || base + (size_t)n >= FOLDER_SIZE - 64)
        return;
    target[n] = '\0';
    snprintf(path + base, FOLDER_SIZE - base, "%s", target);
}

rp_status run_folder_find(const char *runs, const char *given, char out[FOLDER_SIZE], rp_error *err)
{
    const char *name = given ? given : FOLDER_LATEST;
    if (strlen(name) + strlen(runs) > FOLDER_SIZE - 64)
        return err_set(err, RP_INVALID_ARGUMENT, "the path '%s' is too long", name);
    snprintf(out, FOLDER_SIZE, "%s", name);
    bool found = given && run_folder_holds(out);
    if (!found) {
        snprintf(out, FOLDER_SIZE, "%s/%s", runs, name);
        found = run_folder_holds(out);
    }
    if (found) {
        follow_link(out);
        return RP_OK;
    }
    if (!given)
        return err_set(err, RP_NOT_FOUND, "there is no run in '%s': say which one with --run DIR", runs);
    return err_set(err, RP_NOT_FOUND, "there is no run in '%s', nor in '%s/%s': a run's folder has a " FOLDER_STATE,
                   given, runs, given);
}

rp_status run_folder_find_living(const char *runs, const char *given, char out[FOLDER_SIZE], rp_error *err)
{
    bool latest = !given || strcmp(given, FOLDER_LATEST) == 0;
    /* A run that goes on has the status of its end until it has one of its own. */
    if (latest && run_folder_find(runs, given, out, NULL) == RP_OK && run_folder_locked(out))
        return RP_OK;
    if (latest && why_find_living(runs, out, FOLDER_SIZE - 64))
        return RP_OK;
    return run_folder_find(runs, given, out, err);
}

/* ---- the lock ---- */

int run_folder_lock_file(const char *folder, const char *file, mode_t mode, int how)
{
    char path[FOLDER_SIZE + 400];
    int fd = open(run_folder_path(path, sizeof path, folder, file), O_RDWR | O_CREAT | O_CLOEXEC, mode);
    if (fd < 0 && how & LOCK_SH) /* a file of another user's run: who only looks need not write it */
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || flock(fd, how) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

rp_status run_folder_lock(const char *folder, int *lock, rp_error *err)
{
    *lock = run_folder_lock_file(folder, FOLDER_LOCK, 0666, LOCK_EX | LOCK_NB);
    if (*lock >= 0)
        return RP_OK;
    if (errno == EWOULDBLOCK)
        return err_set(err, RP_FAILED_PRECONDITION,
                       "another replay-launch works on '%s': 'replay-launch stop --run %s' ends it", folder, folder);
    return err_set(err, RP_IO,
                   "'%s/" FOLDER_LOCK "' cannot be written and locked (%s): if the file system has no locks, put the "
                   "runs' folder on another one, or mount this one with flock",
                   folder, strerror(errno));
}

bool run_folder_locked(const char *folder)
{
    int lock = run_folder_lock_file(folder, FOLDER_LOCK, 0666, LOCK_SH | LOCK_NB);
    bool locked = lock < 0 && errno == EWOULDBLOCK;
    if (lock >= 0)
        close(lock);
    return locked;
}

bool run_folder_is_fresh(const char *folder)
{
    char path[FOLDER_SIZE + 16];
    struct stat st;
    return stat(run_folder_path(path, sizeof path, folder, FOLDER_STATUS), &st) == 0 &&
           time(NULL) - st.st_mtime < FRESH_S;
}

/* ---- files ---- */

static rp_status write_whole(const char *folder, const char *file, const char *text, mode_t mode, rp_error *err)
{
    char path[FOLDER_SIZE + 64];
    run_folder_path(path, sizeof path, folder, file);
    return io_replace(path, text, strlen(text), mode, false)
               ? RP_OK
               : err_set(err, RP_IO, "'%s' cannot be written: %s", path, strerror(errno));
}

rp_status run_folder_write(const char *folder, const char *file, const char *text, rp_error *err)
{
    return write_whole(folder, file, text, 0666, err);
}

rp_status run_folder_write_secret(const char *folder, const char *file, const char *text, rp_error *err)
{
    return write_whole(folder, file, text, 0600, err);
}

void run_folder_remove(const char *folder, const char *file)
{
    char path[FOLDER_SIZE + 64];
    unlink(run_folder_path(path, sizeof path, folder, file));
}

char *run_folder_read(const char *folder, const char *file)
{
    char path[FOLDER_SIZE + 64];
    struct stat st;
    FILE *in = fopen(run_folder_path(path, sizeof path, folder, file), "re");
    char *text = NULL;
    if (in && fstat(fileno(in), &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= MAX_FILE)
        text = malloc((size_t)st.st_size + 1);
    if (text)
        text[fread(text, 1, (size_t)st.st_size, in)] = '\0';
    if (in)
        fclose(in);
    return text;
}

rp_status run_folder_write_rows(const char *folder, const char *file, const struct json_row *rows, const void *from,
                                rp_error *err)
{
    json_object *root = json_map_object(rows, from);
    rp_status status =
        run_folder_write(folder, file, json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY), err);
    json_object_put(root);
    return status;
}

/* ---- the state ---- */

#define STATE(member) JSON_ROW(struct folder_state, member)

static const struct json_row state_rows[] = {
    STATE(pid),      STATE(legs),        STATE(elapsed_s), STATE(steps), STATE(learner_steps), STATE(actors),
    STATE(learners), STATE(auto_actors), STATE(by_hand),   STATE(done),  STATE(service),       STATE(here),
    STATE(cwd),      STATE(command),     STATE(node),      {0},
};

rp_status run_folder_write_state(const char *folder, const struct folder_state *state, rp_error *err)
{
    return run_folder_write_rows(folder, FOLDER_STATE, state_rows, state, err);
}

/* A damaged file may hold numbers that no run has: they count as 0. */
static void drop_impossible(struct folder_state *state)
{
    if (state->pid <= 1 || state->pid == INT32_MAX)
        state->pid = 0;
    if (!(state->elapsed_s >= 0.0 && state->elapsed_s < 1e12))
        state->elapsed_s = 0.0;
    if (state->steps > INT64_MAX)
        state->steps = 0;
    if (state->learner_steps > INT64_MAX)
        state->learner_steps = 0;
    if (state->actors > FOLDER_MAX_COUNT)
        state->actors = 0;
    if (state->learners > FOLDER_MAX_COUNT)
        state->learners = 0;
}

rp_status run_folder_read_state(const char *folder, struct folder_state *out, rp_error *err)
{
    *out = (struct folder_state){0};
    char *text = run_folder_read(folder, FOLDER_STATE);
    json_object *root = text ? json_tokener_parse(text) : NULL;
    free(text);
    bool ok = json_object_is_type(root, json_type_object);
    if (ok) {
        json_map_read(root, state_rows, out);
        drop_impossible(out);
    }
    json_object_put(root);
    return ok ? RP_OK
              : err_set(err, RP_NOT_FOUND,
                        "'%s/" FOLDER_STATE "' cannot be read: the folder holds no run, or the file is damaged",
                        folder);
}

void run_folder_this_node(char out[FOLDER_NODE])
{
    memset(out, 0, FOLDER_NODE);
    if (gethostname(out, FOLDER_NODE - 1) != 0)
        out[0] = '\0';
}

bool run_folder_is_elsewhere(const struct folder_state *state)
{
    char node[FOLDER_NODE];
    run_folder_this_node(node);
    return state->node[0] && node[0] && strcmp(state->node, node) != 0;
}

bool run_folder_works_here(const char *folder, struct folder_state *state)
{
    return run_folder_locked(folder) && run_folder_read_state(folder, state, NULL) == RP_OK &&
           !run_folder_is_elsewhere(state);
}

/* ---- who asks for the end ---- */

#define NOTE "launch.stop"

void stop_note_leave(const char *folder, const char *who)
{
    run_folder_write(folder, NOTE, who, NULL);
}

void stop_note_drop(const char *folder)
{
    run_folder_remove(folder, NOTE);
}

const char *stop_asker(const char *folder, const struct interrupts *interrupts, char *out, size_t size)
{
    char *note =
        interrupts->last == SIGTERM ? run_folder_read(folder, NOTE) : NULL; /* only SIGTERM comes with a note */
    stop_note_drop(folder);
    if (note && note[0])
        snprintf(out, size, "%.*s", (int)strcspn(note, "\r\n"), note);
    else
        interrupts_describe(interrupts, out, size);
    free(note);
    return out;
}

rp_status run_folder_stop(const char *folder, const char *who, int32_t *pid, rp_error *err)
{
    struct folder_state state;
    RP_TRY(run_folder_read_state(folder, &state, err));
    *pid = state.pid;
    if (run_folder_is_elsewhere(&state)) /* the same number may be another process here */
        return err_set(err, RP_FAILED_PRECONDITION, "the run works on %s: stop it there (ssh %s replay-launch stop %s)",
                       state.node, state.node, folder);
    if (!run_folder_locked(folder))
        return err_set(err, RP_FAILED_PRECONDITION, "the run in '%s' has ended already", folder);
    stop_note_leave(folder, who);
    if (state.pid > 0 && kill(state.pid, SIGTERM) == 0)
        return RP_OK;
    int error = errno;
    stop_note_drop(folder);
    return err_set(err, RP_IO, "process %d cannot be asked to end: %s", state.pid, strerror(error));
}

/* ---- requests ---- */

#define REQUEST "launch.request"
#define ANSWER "launch.answer"
#define ASKING "launch.asking" /* the lock of whoever asks */
#define REQUEST_PAUSE_MS 50

/* There is one request at a time: the others wait, so that each gets its own answer. Launchers look twice a second. */
char *run_request_ask(const char *folder, const char *request, int seconds, rp_error *err)
{
    int lock = run_folder_lock_file(folder, ASKING, 0666, LOCK_EX);
    if (lock < 0) {
        err_set(err, RP_IO, "'%s/" ASKING "' cannot be locked: %s", folder, strerror(errno));
        return NULL;
    }
    char *answer = NULL;
    run_folder_remove(folder, ANSWER);
    bool asked = run_folder_write(folder, REQUEST, request, err) == RP_OK;
    for (int waited = 0; asked && !answer && waited < 1000 * seconds && run_folder_locked(folder);
         waited += REQUEST_PAUSE_MS) {
        nanosleep(&(struct timespec){.tv_nsec = REQUEST_PAUSE_MS * 1000000L}, NULL);
        answer = run_folder_read(folder, ANSWER);
    }
    run_folder_remove(folder, REQUEST);
    run_folder_remove(folder, ANSWER);
    if (asked && !answer)
        err_set(err, RP_UNAVAILABLE, "%s: the launcher of this run has ended, or has not answered within %d s", folder,
                seconds);
    close(lock);
    return answer;
}

char *run_request_next(const char *folder)
{
    char *request = run_folder_read(folder, REQUEST);
    if (request)
        run_folder_remove(folder, REQUEST);
    return request;
}

void run_request_answer(const char *folder, const char *answer)
{
    run_folder_write(folder, ANSWER, answer, NULL);
}
