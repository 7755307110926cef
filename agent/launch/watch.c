#include "agent/launch/watch.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/process.h"
#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/status.h"
#include "agent/launch/report.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define TICK_MS 200
#define WATCH_POLL_NS (2 * NS_PER_S)
/* A job that saves its tables may take as long as the warning before its time limit. */
#define STOP_NS (180 * NS_PER_S)
/* How long cancelled tasks of the array may take to end before the core job is cancelled, too. */
#define TIDY_NS (5 * NS_PER_S)
#define WATCH_TAIL_LINES 12

/* ---- whether a run is alive ---- */

bool watch_alive(struct watch_alive *self, const char *folder)
{
    struct slurm_record record;
    rp_error err = {0};
    if (run_folder_locked(folder))
        return true;
    if (!slurm_record_read(folder, &record))
        return false;
    if (self->asked_ns > 0 && clock_ns() - self->asked_ns < WATCH_POLL_NS)
        return self->alive;
    self->asked_ns = clock_ns();
    /* Without an answer, the run's own sign of life counts. */
    self->alive = slurm_poll(record.core, &self->job, &err) == RP_OK ? self->job.state != SLURM_GONE
                                                                     : run_folder_is_fresh(folder);
    return self->alive;
}

rp_status watch_is_free(const char *given, rp_error *err)
{
    char folder[FOLDER_SIZE];
    struct slurm_record record;
    struct slurm_job job;
    if (run_folder_find(FOLDER_RUNS, given, folder, err) != RP_OK || !slurm_record_read(folder, &record)) {
        *err = (rp_error){0};
        return RP_OK;
    }
    RP_TRY(slurm_poll(record.core, &job, err));
    if (job.state == SLURM_GONE)
        return RP_OK;
    return err_set(err, RP_FAILED_PRECONDITION,
                   "job %" PRIu64 " works on '%s' or waits to do so: 'replay-launch stop --run %s' ends it",
                   record.core, folder, folder);
}

/* ---- watching ---- */

struct watch {
    const struct watch_options *options;
    struct slurm_record record;
    struct slurm_job job;
    struct screen *screen;
    struct stat shown; /* the status file that was shown last */
    long log_at;       /* byte of the core job's output up to which it was shown; -1: the status shows the rest */
    int64_t poll_ns;
    uint32_t heard;    /* signals so far */
    bool ended, leave; /* the job is gone; the user leaves the run to itself */
    bool stopping;
    bool blind; /* the last question about the job got no answer */
};

static void look_at_job(struct watch *self)
{
    struct slurm_job job;
    rp_error err = {0};
    if (clock_ns() < self->poll_ns)
        return;
    self->poll_ns = clock_ns() + WATCH_POLL_NS;
    bool failed = slurm_poll(self->record.core, &job, &err) != RP_OK, again = self->blind;
    self->blind = failed;
    if (failed && !again)
        screen_say(self->screen, true, "job %" PRIu64 " cannot be watched: %s", self->record.core, err.text);
    if (failed)
        return;
    bool same = job.state == self->job.state && strcmp(job.reason, self->job.reason) == 0 &&
                strcmp(job.node, self->job.node) == 0;
    self->job = job;
    self->ended = job.state == SLURM_GONE;
    if (!same && job.state == SLURM_RUNNING)
        screen_say(self->screen, false, "job %" PRIu64 " runs on %s", self->record.core, job.node);
    else if (!same && job.state == SLURM_PENDING)
        screen_say(self->screen, false, "job %" PRIu64 " waits: %s", self->record.core,
                   job.reason[0] ? job.reason : "it was just submitted");
}

bool watch_status(const char *folder, struct status *out)
{
    char *text = run_folder_read(folder, FOLDER_STATUS);
    bool ok = text && status_from_json(text, out);
    free(text);
    return ok;
}

/* Until there is a status, what the job prints is all that there is to see: the measurements and the plan. */
static void show_log(struct watch *self)
{
    char path[FOLDER_SIZE + 32], line[1024];
    FILE *in = self->log_at >= 0
                   ? fopen(run_folder_path(path, sizeof path, self->options->folder, SLURM_CORE_LOG), "re")
                   : NULL;
    if (!in)
        return;
    for (bool ok = fseek(in, self->log_at, SEEK_SET) == 0; ok && fgets(line, sizeof line, in);) {
        size_t length = strlen(line);
        /* The rest of a line may come later; a line that begins with a zero byte has no length. */
        ok = length > 0 && (line[length - 1] == '\n' || length == sizeof line - 1);
        if (!ok)
            break;
        self->log_at = ftell(in);
        line[strcspn(line, "\n")] = '\0';
        screen_say(self->screen, false, "%s", line);
    }
    fclose(in);
}

/* Leaves out what earlier jobs of the run have written. */
static void skip_old(struct watch *self)
{
    char path[FOLDER_SIZE + 32];
    struct stat st;
    struct folder_state state = {0};
    if (run_folder_read_state(self->options->folder, &state, NULL) != RP_OK || state.legs == 0)
        return;
    if (stat(run_folder_path(path, sizeof path, self->options->folder, SLURM_CORE_LOG), &st) == 0)
        self->log_at = (long)st.st_size;
    if (stat(run_folder_path(path, sizeof path, self->options->folder, FOLDER_STATUS), &st) == 0)
        self->shown = st;
}

/* A status that was not written again is not shown again: it may be that of an earlier leg. */
static void show_status(struct watch *self)
{
    char path[FOLDER_SIZE + 16];
    struct stat st;
    struct status copy;
    run_folder_path(path, sizeof path, self->options->folder, FOLDER_STATUS);
    if (stat(path, &st) != 0 || self->job.state == SLURM_PENDING)
        return;
    if (st.st_ino == self->shown.st_ino && st.st_mtim.tv_sec == self->shown.st_mtim.tv_sec &&
        st.st_mtim.tv_nsec == self->shown.st_mtim.tv_nsec)
        return;
    self->shown = st;
    if (!watch_status(self->options->folder, &copy))
        return;
    self->log_at = -1;
    if (copy.phase >= PHASE_DONE)
        self->poll_ns = 0; /* the job is about to end */
    screen_show(self->screen, &copy);
    status_fini(&copy);
}

/* ---- Ctrl-C ---- */

/* Reads one answer from the terminal; another Ctrl-C is "s". */
static char read_answer(struct watch *self)
{
    struct interrupts *interrupts = self->options->interrupts;
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = interrupts->fd, .events = POLLIN}};
    char line[64];
    for (;;) {
        if (poll(fds, 2, -1) < 0)
            return 'c';
        interrupts_wait(interrupts, 0);
        if (interrupts->asked > self->heard) {
            self->heard = interrupts->asked;
            puts("");
            return 's';
        }
        if (!fds[0].revents)
            continue;
        ssize_t n = read(STDIN_FILENO, line, sizeof line);
        return n <= 0 ? 'g' : line[0];
    }
}

static char ask(struct watch *self)
{
    char answer;
    screen_destroy(&self->screen);
    do {
        printf("\nThe run works in job %" PRIu64 ". g: leave it to itself, s: stop it, c: continue to watch [c] ",
               self->record.core);
        fflush(stdout);
        answer = read_answer(self);
    } while (!strchr("gsc\n", answer));
    self->screen = screen_new(self->options->mode);
    self->shown = (struct stat){0};
    return answer;
}

/* ---- ending jobs ---- */

static rp_status await_end(uint64_t id, int64_t limit_ns, rp_error *err)
{
    struct slurm_job job;
    int64_t end_ns = clock_ns() + limit_ns;
    do {
        RP_TRY(slurm_poll(id, &job, err));
        if (job.state == SLURM_GONE)
            return RP_OK;
        nanosleep(&(struct timespec){.tv_nsec = TICK_MS * NS_PER_MS}, NULL);
    } while (clock_ns() < end_ns);
    return err_set(err, RP_DEADLINE_EXCEEDED, "job %" PRIu64 " still works on it after %d s: try --force", id,
                   (int)(limit_ns / NS_PER_S));
}

/* Ends a run in order, or at once. Then the array goes first: while the carriers in the core job live, node agents end
 * in order and leave nothing behind. */
static rp_status end_jobs(const char *folder, bool at_once, const char *who, struct slurm_record *record, rp_error *err)
{
    if (!slurm_record_read(folder, record)) /* the array is known by now */
        return err_set(err, RP_IO, "'%s/" SLURM_RECORD "' cannot be read", folder);
    if (!at_once) {
        stop_note_leave(folder, who);
        return slurm_ask(record->core, err);
    }
    RP_TRY(slurm_cancel(record->array, err));
    if (record->array > 0)
        await_end(record->array, TIDY_NS, NULL);
    return slurm_cancel(record->core, err);
}

/* A job that waits has nothing to save. */
static void stop(struct watch *self)
{
    rp_error err = {0};
    bool force = self->stopping || self->job.state != SLURM_RUNNING;
    screen_say(self->screen, false, force ? "the jobs are cancelled" : "the run stops in order; once more kills it");
    if (end_jobs(self->options->folder, force, "the terminal of the run", &self->record, &err) != RP_OK)
        screen_say(self->screen, true, "%s", err.text);
    self->stopping = true;
    self->poll_ns = 0;
}

static void heed_signals(struct watch *self)
{
    const struct interrupts *interrupts = self->options->interrupts;
    if (interrupts->asked == self->heard)
        return;
    self->heard = interrupts->asked;
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && interrupts->last == SIGINT;
    char answer = terminal && !self->stopping ? ask(self) : 's';
    if (answer == 's')
        stop(self);
    self->leave = answer == 'g';
}

/* ---- the end ---- */

static int watch_conclude(const struct watch *self)
{
    const char *folder = self->options->folder;
    struct status copy = {0};
    bool known = watch_status(folder, &copy);
    enum phase phase = known ? copy.phase : PHASE_FAILED;
    char *report = run_folder_read(folder, REPORT_TEXT);
    if (report && self->options->mode != SCREEN_JSON)
        fputs(report, stdout);
    fflush(stdout);
    if (phase == PHASE_FAILED && known)
        fprintf(stderr, LAUNCH_PROGRAM ": %s\n", copy.reason);
    if (!report && !known)
        fprintf(stderr, LAUNCH_PROGRAM ": job %" PRIu64 " has ended before the run began: see %s/" SLURM_CORE_LOG "\n",
                self->record.core, folder);
    else if (!report && phase != PHASE_FAILED)
        fprintf(stderr,
                LAUNCH_PROGRAM ": job %" PRIu64
                               " is gone before the run was at its end: 'replay-launch resume %s' goes "
                               "on\n",
                self->record.core, folder);
    if (!report && !self->stopping && self->log_at < 0) { /* otherwise it was shown */
        struct process job = {0};
        char tail[4096];
        snprintf(job.log, sizeof job.log, "%.480s/" SLURM_CORE_LOG, folder);
        fprintf(stderr, "%s\n", process_tail(&job, tail, sizeof tail, WATCH_TAIL_LINES));
    }
    int status = phase == PHASE_FAILED || (!report && !self->stopping) ? EXIT_FAILED : EXIT_FINE;
    if (known)
        status_fini(&copy);
    free(report);
    return status;
}

rp_status watch_run(const struct watch_options *options, int *exit, rp_error *err)
{
    struct watch self = {.options = options};
    if (!slurm_record_read(options->folder, &self.record))
        return err_set(err, RP_IO, "'%s/" SLURM_RECORD "' cannot be read", options->folder);
    self.screen = screen_new(options->mode);
    skip_old(&self);
    screen_say(self.screen, false, "job %" PRIu64 " is submitted; the run's folder is %s", self.record.core,
               options->folder);
    while (!self.ended && !self.leave && !ferror(stdout)) {
        look_at_job(&self);
        show_log(&self);
        show_status(&self);
        if (self.ended)
            break;
        interrupts_wait(options->interrupts, TICK_MS);
        heed_signals(&self);
    }
    screen_destroy(&self.screen);
    if (self.ended)
        *exit = watch_conclude(&self);
    else
        printf("The run goes on. 'replay-launch status --run %s' shows it, 'replay-launch stop --run %s' ends it.\n",
               options->folder, options->folder);
    return RP_OK;
}

/* ---- from another terminal ---- */

/* The launcher in the core job may have submitted another array until its end. */
static rp_status stop_job(const char *folder, const struct slurm_job *job, bool force, rp_error *err)
{
    struct slurm_record record;
    RP_TRY(end_jobs(folder, force || job->state != SLURM_RUNNING, "replay-launch stop", &record, err));
    RP_TRY(await_end(record.core, STOP_NS, err));
    slurm_record_read(folder, &record);
    RP_TRY(slurm_cancel(record.array, err));
    return record.array > 0 ? await_end(record.array, STOP_NS, err) : RP_OK;
}

bool watch_stop(const char *folder, bool force, rp_status *status, rp_error *err)
{
    struct slurm_record record;
    struct slurm_job job;
    if (!slurm_record_read(folder, &record))
        return false;
    *status = slurm_poll(record.core, &job, err);
    bool works = job.state != SLURM_GONE;
    if (*status == RP_OK && works)
        *status = stop_job(folder, &job, force, err);
    if (*status == RP_OK)
        printf("%s: %s\n", folder, works ? "stopped" : "it has ended already; there is nothing to stop");
    return true;
}
