#include "agent/launch/run/run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/run/run_impl.h"
#include "agent/program/worker.h"
#include "proto/base/error.h"

#define LOOK_NS (NS_PER_S / 2)
#define SAVE_NS NS_PER_S
#define RESIZE_MARGIN 0.2

/* shown: text for the screen; text: for the log and as the event. */
static void tell(struct run *self, enum log_level level, const char *id, const char *shown, const char *text)
{
    char quoted[SUPERVISOR_TAIL + 1024];
    struct timespec now;
    if (self->event_unsaved)
        run_save_line(self); /* a status has room for one event; metrics.jsonl has them all */
    screen_say(*self->options->screen, level >= LEVEL_WARN, "%s", shown);
    log_line(level, id, "launch", "text=%s", log_quote(quoted, sizeof quoted, text));
    supervisor_one_line(text, self->event, sizeof self->event);
    clock_gettime(CLOCK_REALTIME, &now);
    self->event_unix_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    self->event_unsaved = true;
}

void run_say(struct run *self, enum log_level level, const char *id, const char *format, ...)
{
    char text[SUPERVISOR_TAIL + 1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tell(self, level, id, text, text);
}

/* ---- stopping ---- */

/* run_finish prints why a run failed, as the very last lines, so it is not printed here. */
void run_stop(struct run *self, enum run_outcome outcome, bool patient, const char *format, ...)
{
    char text[SUPERVISOR_TAIL + 512], line[SUPERVISOR_TAIL + 576];
    if (self->phase >= PHASE_STOPPING)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    supervisor_one_line(text, self->reason, sizeof self->reason);
    self->phase = PHASE_STOPPING;
    self->outcome = outcome;
    self->patient = patient;
    bool failed = outcome == RUN_FAILED;
    if (failed)
        snprintf(self->cause, sizeof self->cause, "%s", text);
    snprintf(line, sizeof line, "stopping: %s", text);
    tell(self, failed ? LEVEL_ERROR : LEVEL_INFO, "A0408", failed ? "stopping: the run has failed" : line, line);
}

static void heed_interrupts(struct run *self)
{
    const struct interrupts *interrupts = self->options->interrupts;
    char who[STOP_ASKER];
    if (interrupts->asked == self->interrupts_seen || self->forced)
        return;
    self->interrupts_seen = interrupts->asked;
    self->patient = false; /* the run is stopping already and takes too long */
    self->hurried |= self->phase >= PHASE_STOPPING;
    run_stop(self, RUN_STOPPED, false, "%s", stop_asker(self->options->folder, interrupts, who, sizeof who));
    if (interrupts->asked < 2)
        return;
    run_say(self, LEVEL_WARN, "A0409", "asked twice: all processes are killed");
    self->forced = self->hurried = true;
    run_kill_all(self);
}

static void check_ends(struct run *self, const struct status *status)
{
    const struct stop_section *stop = &self->config->stop;
    uint64_t claimed = self->seen.steps > self->steps_before ? self->seen.steps : self->steps_before;
    if (self->phase >= PHASE_STOPPING)
        return;
    /* Checked first: a run that reaches its goal with the last step has reached it. */
    if (self->n_values > 0 && status->value >= stop->value) {
        self->reached = true;
        run_stop(self, RUN_DONE, false, "an evaluation gave %.6g, and stop.value is %.6g", status->value, stop->value);
    } else if (stop->steps > 0 && claimed >= (uint64_t)stop->steps) {
        run_stop(self, RUN_DONE, true, "%llu environment steps were taken", (unsigned long long)stop->steps);
    } else if (stop->learner_steps > 0 && status->learner_steps >= (uint64_t)stop->learner_steps) {
        run_stop(self, RUN_DONE, false, "%llu learner steps were made", (unsigned long long)stop->learner_steps);
    } else if (run_time_to_end(self) && !self->learners_started && run_had_time(self)) {
        run_stop(self, RUN_FAILED, false,
                 "stop.time of %.6g s is reached, and the broker was never ready: see logs/broker.log",
                 status->stop_time_s);
    } else if (run_time_to_end(self)) {
        run_stop(self, RUN_DONE, false, "stop.time of %.6g s is reached", status->stop_time_s);
    }
}

/* True if nothing was inserted, sampled or learned for launch.hang. */
static bool stalls(const struct run *self, int64_t now_ns)
{
    int64_t hang_ns = self->config->launch.hang_ns;
    return hang_ns > 0 && self->moved_ns > 0 && now_ns - self->moved_ns > hang_ns;
}

/* Reports a run that stands still, with the reason if the broker knows one. */
static void watch_progress(struct run *self, const struct observation *before, int64_t now_ns)
{
    const struct observation *seen = &self->seen;
    bool moves = seen->inserts != before->inserts || seen->samples != before->samples || seen->steps != before->steps ||
                 seen->learner_steps != before->learner_steps || !self->actors_started;
    if (moves || self->moved_ns == 0) {
        self->moved_ns = now_ns;
        self->stall_said = false;
    }
    if (self->stall_said || self->phase >= PHASE_STOPPING || !stalls(self, now_ns))
        return;
    self->stall_said = true;
    const char *why = seen->waiting_samplers > 0  ? seen->samples_wait
                      : seen->waiting_inserts > 0 ? seen->inserts_wait
                                                  : "no process waits in the broker, so one may hang";
    run_say(self, LEVEL_WARN, "A0417", "nothing was inserted, sampled or learned for %.0f s: %s",
            (double)self->config->launch.hang_ns * 1e-9, seen->broker ? why : "the broker does not answer");
}

/* Without a broker no process can finish, and without learners an actor that the limiter holds back cannot. */
static void lose_patience(struct run *self, int64_t now_ns)
{
    if (run_running(self, ROLE_LEARNER) > 0 || !self->config->learners.on)
        self->learners_seen_ns = now_ns;
    if (run_running(self, ROLE_BROKER) == 0 || run_time_to_end(self) ||
        now_ns - self->learners_seen_ns > self->config->launch.grace_ns)
        self->patient = false;
    if (self->patient && run_running(self, ROLE_LEARNER) > 0 && stalls(self, now_ns)) {
        run_say(self, LEVEL_WARN, "A0417",
                "a learner neither ends nor learns for %.0f s (launch.hang): it is asked to end",
                (double)self->config->launch.hang_ns * 1e-9);
        self->patient = false;
    }
}

/* Our actors and learners end by themselves when all steps are taken, and the evaluator ends after them. */
static void stop_more(struct run *self, int64_t now_ns)
{
    lose_patience(self, now_ns);
    if (!self->patient || run_is_custom(self, ROLE_ACTOR))
        run_ask(self, ROLE_ACTOR, 0, now_ns);
    if (!self->patient || (run_is_custom(self, ROLE_LEARNER) && run_running(self, ROLE_ACTOR) == 0))
        run_ask(self, ROLE_LEARNER, 0, now_ns);
    bool last_evaluation = self->patient && (!run_is_custom(self, ROLE_LEARNER) || run_running(self, ROLE_LEARNER) > 0);
    if (!last_evaluation)
        run_ask(self, ROLE_EVALUATOR, 0, now_ns);
    if (run_running(self, ROLE_ACTOR) + run_running(self, ROLE_LEARNER) + run_running(self, ROLE_EVALUATOR) > 0)
        return;
    if (self->broker_asked_ns == 0) {
        self->broker_asked_ns = now_ns;
        if (self->observer && !self->forced) { /* takes in the last counts and evaluations */
            const struct observation before = self->seen;
            observer_rescan(self->observer);
            observer_look(self->observer, RUN_LOOK_MS, &self->seen);
            run_take_in(self, &before);
        }
        observer_destroy(&self->observer); /* the broker's end is expected */
        run_ask(self, ROLE_BROKER, 0, now_ns);
    } else if (now_ns - self->broker_asked_ns > run_broker_grace(self) && run_running(self, ROLE_BROKER) > 0) {
        run_kill_all(self);
    }
}

/* ---- the loop ---- */

/* What the machines of the plan take; under a scheduler, as many as it may give machines for. */
static void find_bounds(const struct run *self, const struct plan *plan, uint32_t *least, uint32_t *most)
{
    uint32_t fewest = 1, given = 1;
    *least = 1;
    *most = plan->most_actors;
    if (self->config->launch.engine != ENGINE_SLURM || !run_config_slurm_actors(self->config, &fewest, &given))
        return;
    *least = fewest;
    *most = given > *most ? given : *most;
}

static void resize(struct run *self, const struct status *status, int64_t now_ns)
{
    const struct plan *plan = self->options->plan;
    const struct launch_section *launch = &self->config->launch;
    if (!launch->resize || !self->options->auto_actors || !plan || self->phase >= PHASE_STOPPING)
        return;
    double cpu = status->cpu, cores = status->cores;
    uint32_t least, most;
    run_actor_machines(self, &cpu, &cores);
    find_bounds(self, plan, &least, &most);
    const struct resize_limits limits = {.least = least,
                                         .most = most,
                                         .after_ns = launch->resize_after_ns,
                                         .margin = RESIZE_MARGIN,
                                         .predicted_actor_idle = status->planned_actor_idle,
                                         .predicted_learner_idle = status->planned_learner_idle,
                                         .cores = cores};
    const struct resize_seen seen = {.actors = self->actors_wanted,
                                     .actor_idle = status->actor_idle,
                                     .learner_idle = status->learner_idle,
                                     .cpu = cpu,
                                     .steady = self->phase == PHASE_RUNNING &&
                                               status->actors == status->actors_wanted &&
                                               status->learners == status->learners_wanted && self->seen.broker};
    char reason[256];
    uint32_t wanted = resize_decide(&self->resize, &limits, &seen, now_ns, reason, sizeof reason);
    if (wanted == self->actors_wanted)
        return;
    run_say(self, LEVEL_INFO, "A0410", "%s", reason);
    run_set_actors(self, wanted, now_ns);
}

void run_look(struct run *self, int64_t now_ns)
{
    struct status status;
    bool line = now_ns >= self->save_ns;
    if (self->observer && self->broker_asked_ns == 0) {
        const struct observation before = self->seen;
        observer_look(self->observer, RUN_LOOK_MS, &self->seen);
        run_take_in(self, &before);
        run_put_back_later(self, now_ns);
        if (self->phase == PHASE_STOPPING)
            run_fill_steps(self);
        watch_progress(self, &before, now_ns);
    }
    if (self->phase == PHASE_FILLING &&
        (self->seen.samples > 0 || (!self->config->learners.on && self->seen.inserts > 0))) {
        self->phase = PHASE_RUNNING;
        self->running_ns = now_ns;
    }
    if (line) {
        self->save_ns = now_ns + SAVE_NS;
        run_measure_usage(self, now_ns);
    }
    run_status(self, &status);
    check_ends(self, &status);
    if (self->actors_started)
        resize(self, &status, now_ns);
    if (line)
        run_save(self, &status);
    screen_show(*self->options->screen, &status);
}

static void loop(struct run *self)
{
    run_add(self, ROLE_BROKER, 0);
    for (;;) {
        bool busy = self->hosts.pool && host_pool_busy(self->hosts.pool);
        interrupts_wait(self->options->interrupts, busy ? RUN_BUSY_MS : RUN_TICK_MS);
        int64_t now_ns = clock_now(&self->clock);
        heed_interrupts(self);
        run_tend(self, now_ns);
        if (self->phase < PHASE_STOPPING && !self->actors_started)
            run_start_more(self, now_ns);
        if (self->phase >= PHASE_STOPPING) {
            run_keep_time(self);
            run_heed_limit(self, now_ns);
            stop_more(self, now_ns);
            uint32_t running = 0;
            for (enum role role = 0; role < ROLES; role++)
                running += run_running(self, role);
            if (running == 0)
                return;
        }
        if (now_ns >= self->look_ns || !self->actors_started || screen_touched(*self->options->screen)) {
            self->look_ns = now_ns + LOOK_NS;
            run_look(self, now_ns);
        }
    }
}

/* ---- the whole ---- */

/* A new run goes on from nothing: weights that lie in its folder are not its own. */
static void set_aside(struct run *self)
{
    static const char *const names[] = {LEARNER_STATE_FILE, BEST_WEIGHTS_FILE};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[FOLDER_SIZE + 32], other[FOLDER_SIZE + 40];
        run_folder_path(path, sizeof path, self->options->folder, names[i]);
        snprintf(other, sizeof other, "%s.before", path);
        if (rename(path, other) == 0)
            run_say(self, LEVEL_WARN, "A0443", "%s was there before the run began: it is %s.before now", names[i],
                    names[i]);
    }
}

static rp_status open_run(struct run *self, rp_error *err)
{
    const struct run_options *options = self->options;
    char path[FOLDER_SIZE + 32];
    self->value_steps = calloc(STATUS_MAX_VALUES, sizeof *self->value_steps);
    self->values = calloc(STATUS_MAX_VALUES, sizeof *self->values);
    if (!self->value_steps || !self->values)
        return err_set(err, RP_NO_MEMORY, "no memory for a run");
    run_folder_path(path, sizeof path, options->folder, FOLDER_METRICS);
    if (history_open(&self->history, path, err) != RP_OK)
        return err->status;
    run_folder_path(self->endpoints_file, sizeof self->endpoints_file, options->folder, "endpoints");
    unlink(self->endpoints_file); /* of an earlier leg */
    stop_note_drop(options->folder);
    if (!options->before)
        set_aside(self);
    return RP_OK;
}

enum run_outcome run_do(const struct run_options *options, rp_error *err)
{
    char config_path[FOLDER_SIZE + 32];
    struct run self = {
        .options = options,
        .config = options->config,
        .clock = clock_system(),
        .best = NAN,
        .home_load = NAN,
        .final = {.value = NAN},
        .actors_wanted = run_config_actors(options->config),
        .seen = {.actor_idle = NAN, .learner_idle = NAN, .value = NAN, .value_seconds = NAN, .actor_value = NAN}};
    self.start_ns = clock_now(&self.clock);
    if (options->before) {
        self.steps_before = self.steps_shown = options->before->steps;
        self.learner_steps_before = options->before->learner_steps;
    }
    self.context = (struct command_context){
        .config = options->config,
        .programs = options->programs,
        .config_path = run_folder_path(config_path, sizeof config_path, options->folder, FOLDER_CONFIG),
        .here = options->here,
        .folder = options->folder,
        .endpoints_file = self.endpoints_file,
        .learners = run_config_learners(options->config),
        .keys = options->keys,
        .resume = true}; /* a restarted learner continues from its saved state */
    if (open_run(&self, err) == RP_OK && !run_hosts_open(&self))
        err_set(err, RP_NO_MEMORY, "no memory for the hosts of the run");
    if (err->status == RP_OK) {
        loop(&self);
        observer_destroy(&self.observer);
        run_finish(&self, err);
    } else {
        self.outcome = RUN_FAILED;
        fprintf(stderr, "replay-launch: %s\n", err->text);
    }
    for (uint32_t i = 0; i < self.n_members; i++)
        free(self.members[i]);
    free(self.members);
    free(self.shown);
    free(self.shards);
    run_hosts_fini(&self);
    free(self.value_steps);
    free(self.values);
    history_close(&self.history);
    return self.outcome;
}
