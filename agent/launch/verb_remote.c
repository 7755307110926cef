/* status, logs and stop: for a run that another process launched. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/launch.h"
#include "agent/launch/observe/run_folder.h"
#include "agent/launch/observe/status.h"
#include "agent/launch/view/screen.h"
#include "agent/launch/view/view.h"
#include "agent/launch/watch.h"
#include "proto/base/error.h"

#define RUNS "runs"
#define COLUMNS 100
#define PAUSE_MS 200
/* A run that stops in order ends within ten seconds. */
#define STOP_MS 20000
#define FORCE_MS 3000

static void nap(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static int find(const struct launch *launch, const char *given, char folder[FOLDER_SIZE])
{
    rp_error err = {0};
    return run_folder_find_living(RUNS, given ? given : launch->run, folder, &err) == RP_OK ? -1 : launch_fail(&err);
}

/* ---- status ---- */

/* A launcher that was killed leaves a status that is no longer true. */
static void mend(struct status *status, bool alive)
{
    if (alive || status->phase >= PHASE_DONE)
        return;
    status->phase = PHASE_FAILED;
    snprintf(status->reason, sizeof status->reason, "the launcher is gone; 'replay-launch resume %.300s' goes on",
             status->folder);
}

static bool read_status(const char *folder, struct watch_alive *life, struct status_copy *out, bool *alive)
{
    *alive = watch_alive(life, folder);
    bool ok = watch_status(folder, out);
    if (ok)
        mend(&out->status, *alive);
    return ok;
}

static int no_status(const char *folder)
{
    rp_error err = {0};
    struct watch_alive life = {0};
    bool alive = watch_alive(&life, folder);
    err_set(&err, RP_NOT_FOUND, "the run in '%s' has no status%s%s%s", folder,
            !alive                            ? ": it has not begun"
            : life.job.state == SLURM_PENDING ? " yet: its job waits:"
                                              : " yet: it is being measured",
            life.job.reason[0] ? " " : "", life.job.reason);
    return launch_fail(&err);
}

static int follow(const char *folder, bool json)
{
    struct screen *screen = screen_new(json ? SCREEN_JSON : SCREEN_AUTO);
    struct watch_alive life = {0};
    bool seen = false;
    if (screen)
        screen_follow(screen);
    for (bool alive = true; alive && screen && !screen_quit(screen); nap(PAUSE_MS)) {
        struct status_copy copy;
        if (!read_status(folder, &life, &copy, &alive))
            continue; /* the run is still being measured */
        seen = true;
        screen_show(screen, &copy.status);
        status_copy_fini(&copy);
    }
    screen_destroy(&screen);
    return seen ? EXIT_FINE : no_status(folder);
}

int launch_status(struct launch *launch)
{
    char folder[FOLDER_SIZE];
    struct status_copy copy;
    struct winsize size = {0};
    struct watch_alive life = {0};
    bool alive;
    int status = find(launch, launch->argument, folder);
    if (status >= 0)
        return status;
    if (launch->openmetrics && (launch->follow || launch->json))
        return launch_usage("--openmetrics goes without --json and --follow");
    if (launch->follow)
        return follow(folder, launch->json);
    if (!read_status(folder, &life, &copy, &alive))
        return no_status(folder);
    struct text out = {0};
    if (launch->json) {
        char *text = status_to_json(&copy.status, true);
        puts(text ? text : "");
        free(text);
    } else if (launch->openmetrics) {
        status_metrics(&out, &copy.status);
    } else {
        bool tty = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
        view_render(&out, &copy.status, tty ? size.ws_col : COLUMNS, 0, tty);
    }
    fputs(text_get(&out), stdout);
    text_fini(&out);
    status_copy_fini(&copy);
    return EXIT_FINE;
}

/* ---- logs ---- */

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_logs(const char *folder)
{
    char path[FOLDER_SIZE + 16], *names[4096];
    size_t n = 0;
    DIR *dir = opendir(run_folder_path(path, sizeof path, folder, "logs"));
    for (struct dirent *entry; dir && n < 4096 && (entry = readdir(dir));) {
        char *end = strstr(entry->d_name, ".log");
        if (end && !end[4])
            names[n++] = strndup(entry->d_name, (size_t)(end - entry->d_name));
    }
    if (dir)
        closedir(dir);
    qsort(names, n, sizeof names[0], compare);
    for (size_t i = 0; i < n; i++) {
        puts(names[i] ? names[i] : "");
        free(names[i]);
    }
    return EXIT_FINE;
}

/* Moves to where the last `lines` lines begin. */
static void seek_lines(FILE *in, int64_t lines)
{
    char block[4096];
    if (lines == 0 || fseek(in, 0, SEEK_END) != 0)
        return;
    long at = ftell(in), start = 0;
    for (bool first = true; at > 0 && start == 0;) {
        long size = at < (long)sizeof block ? at : (long)sizeof block;
        at -= size;
        if (fseek(in, at, SEEK_SET) != 0 || fread(block, 1, (size_t)size, in) != (size_t)size)
            break;
        for (long i = size - 1; i >= 0 && start == 0; i--, first = false)
            if (block[i] == '\n' && !first && --lines == 0)
                start = at + i + 1;
    }
    fseek(in, start, SEEK_SET);
}

static void copy_out(FILE *in)
{
    char block[4096];
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;)
        fwrite(block, 1, n, stdout);
    fflush(stdout);
    clearerr(in); /* more output may come */
}

int launch_logs(struct launch *launch)
{
    char folder[FOLDER_SIZE], path[FOLDER_SIZE + 320];
    struct watch_alive life = {0};
    int status = find(launch, NULL, folder);
    if (status >= 0)
        return status;
    if (!launch->argument)
        return list_logs(folder);
    snprintf(path, sizeof path, "%s/logs/%.255s.log", folder, launch->argument);
    FILE *in = strchr(launch->argument, '/') ? NULL : fopen(path, "re");
    if (!in) {
        fprintf(stderr, "replay-launch: there is no log of '%s' in %s/logs; there are:\n", launch->argument, folder);
        list_logs(folder);
        return EXIT_FAILED;
    }
    seek_lines(in, launch->lines);
    copy_out(in);
    while (launch->follow && watch_alive(&life, folder) && !ferror(stdout)) {
        nap(PAUSE_MS);
        copy_out(in);
    }
    copy_out(in);
    if (ftell(in) == 0)
        fprintf(stderr, "replay-launch: %s is empty: it has printed nothing\n", path);
    fclose(in);
    return EXIT_FINE;
}

/* ---- stop ---- */

int launch_stop(struct launch *launch)
{
    char folder[FOLDER_SIZE];
    struct folder_state state;
    rp_error err = {0};
    int status = find(launch, launch->argument, folder);
    if (status >= 0)
        return status;
    if (watch_stop(folder, launch->force, &status))
        return status;
    if (!run_folder_locked(folder)) {
        printf("%s: no launcher works on it\n", folder);
        return EXIT_FINE;
    }
    if (run_folder_read_state(folder, &state, &err) != RP_OK)
        return launch_fail(&err);
    if (run_folder_is_elsewhere(&state)) { /* the same number may be another process here */
        err_set(&err, RP_FAILED_PRECONDITION, "the run works on %s: stop it there (ssh %s replay-launch stop %s)",
                state.node, state.node, folder);
        return launch_fail(&err);
    }
    stop_note_leave(folder, "replay-launch stop");
    if (state.pid == 0 || kill(state.pid, SIGTERM) != 0) {
        int error = errno;
        stop_note_drop(folder);
        err_set(&err, RP_IO, "process %d cannot be asked to end: %s", state.pid, strerror(error));
        return launch_fail(&err);
    }
    for (int waited = 0; run_folder_locked(folder); waited += PAUSE_MS) {
        /* The signal is repeated, because two signals at once count as one. The processes of the run die with the
         * launcher. */
        if (launch->force && waited > 0)
            kill(state.pid, waited < FORCE_MS ? SIGTERM : SIGKILL);
        if (waited > STOP_MS) {
            err_set(&err, RP_DEADLINE_EXCEEDED, "process %d still works on it after %d s: try --force", state.pid,
                    STOP_MS / 1000);
            return launch_fail(&err);
        }
        nap(PAUSE_MS);
    }
    printf("%s: stopped\n", folder);
    return EXIT_FINE;
}
