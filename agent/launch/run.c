#include "agent/launch/run.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/run_impl.h"
#include "agent/run/worker.h"
#include "proto/error.h"
#include "replay/params.h"

#define TICK_MS 50
#define LOOK_NS (NS_PER_S / 2)
#define SAVE_NS NS_PER_S
/* How long a look may wait for the broker. */
#define LOOK_MS 300
/* A broker that does not listen by then has a problem that a restart does not mend. */
#define READY_NS (30 * NS_PER_S)
/* After everybody else has ended, there is little left to do for the broker. */
#define BROKER_GRACE_NS (2 * NS_PER_S)
#define MEASURE_MOST_NS (120 * NS_PER_S)
#define RESIZE_MARGIN 0.2

void run_say(struct run *self, enum log_level level, const char *id, const char *format, ...)
{
    char text[SUPERVISOR_TAIL + 1024], quoted[SUPERVISOR_TAIL + 1024];
    struct timespec now;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    screen_say(*self->options->screen, level >= LEVEL_WARN, "%s", text);
    log_line(level, id, "launch", "text=%s", log_quote(quoted, sizeof quoted, text));
    snprintf(self->event, sizeof self->event, "%.*s", (int)strcspn(text, "\n"), text);
    clock_gettime(CLOCK_REALTIME, &now);
    self->event_unix_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- starting ---- */

static bool our_learners(const struct run *self)
{
    return self->config->learners.command.count == 0;
}

/* What was counted before a resume, or at another broker: exploration and stop.steps go on from there. */
static bool put_back(struct run *self)
{
    const int64_t before = (int64_t)self->steps_before;
    rp_error err = {0};
    int64_t total = 0;
    if (before == 0 || self->put_back)
        return true;
    rp_client *client = observer_client(self->observer);
    if (!client || rp_counter_read(client, COUNTER_STEPS, LOOK_MS, &total, &err) != RP_OK)
        return false;
    if (total < before && rp_counter_add(client, COUNTER_STEPS, before - total, LOOK_MS, NULL, &err) != RP_OK)
        return false;
    return self->put_back = true;
}

static void open_observer(struct run *self, int64_t now_ns)
{
    rp_error err = {0};
    if (endpoints_read(self->endpoints_file, &self->endpoints, &err) != RP_OK) {
        if (now_ns - self->start_ns > READY_NS)
            run_stop(self, RUN_FAILED, false, "the broker did not listen within %d s: see logs/broker.log",
                     (int)(READY_NS / NS_PER_S));
        return;
    }
    self->context.endpoints = &self->endpoints; /* a broker that starts again listens at the same place */
    const struct observe_options options = {
        .service = self->endpoints.service, .table = self->config->adder.table, .folder = self->options->folder};
    self->observer = observer_new(&options, &err);
    if (!self->observer)
        run_stop(self, RUN_FAILED, false, "%s", err.text);
}

/* Each step waits for the one before: broker, learners, their first parameters, actors. */
static void start_more(struct run *self, int64_t now_ns)
{
    const struct run_config *config = self->config;
    if (!self->observer) {
        open_observer(self, now_ns);
    } else if (!self->learners_started && self->seen.broker && put_back(self)) {
        self->learners_started = true;
        for (uint32_t i = 0; i < (uint32_t)config->learners.count; i++)
            run_add(self, ROLE_LEARNER, i);
    } else if (self->learners_started && (self->seen.policy > 0 || !our_learners(self))) {
        self->actors_started = true;
        self->actors_wanted = 0;
        run_set_actors(self, (uint32_t)config->actors.count, now_ns);
        if (config->evaluator.on)
            run_add(self, ROLE_EVALUATOR, 0);
        if (self->phase == PHASE_STARTING)
            self->phase = PHASE_FILLING;
    }
}

/* ---- stopping ---- */

void run_stop(struct run *self, enum run_outcome outcome, bool patient, const char *format, ...)
{
    if (self->phase >= PHASE_STOPPING)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(self->reason, sizeof self->reason, format, args);
    va_end(args);
    self->phase = PHASE_STOPPING;
    self->outcome = outcome;
    self->patient = patient;
    run_say(self, outcome == RUN_FAILED ? LEVEL_ERROR : LEVEL_INFO, "A0408", "stopping: %s", self->reason);
}

static const char *signal_name(int number)
{
    return number == SIGINT ? "Ctrl-C" : number == SIGHUP ? "the terminal went away" : "SIGTERM";
}

static void heed_interrupts(struct run *self)
{
    const struct interrupts *interrupts = self->options->interrupts;
    if (interrupts->asked == self->interrupts_seen)
        return;
    bool second = self->phase >= PHASE_STOPPING && self->interrupts_seen > 0;
    self->interrupts_seen = interrupts->asked;
    if (second || interrupts->asked > 1) {
        run_stop(self, RUN_STOPPED, false, "%s", signal_name(interrupts->last));
        run_say(self, LEVEL_WARN, "A0409", "asked twice: all processes are killed");
        self->forced = true;
        run_kill_all(self);
    } else if (self->phase >= PHASE_STOPPING) { /* it takes them too long */
        self->patient = false;
    } else {
        run_stop(self, RUN_STOPPED, false, "%s", signal_name(interrupts->last));
    }
}

static void check_ends(struct run *self, const struct status *status)
{
    const struct stop_section *stop = &self->config->stop;
    if (self->phase >= PHASE_STOPPING)
        return;
    if (stop->steps > 0 && status->steps >= (uint64_t)stop->steps)
        run_stop(self, RUN_DONE, true, "%llu environment steps were taken", (unsigned long long)stop->steps);
    else if (stop->learner_steps > 0 && status->learner_steps >= (uint64_t)stop->learner_steps)
        run_stop(self, RUN_DONE, false, "%llu learner steps were made", (unsigned long long)stop->learner_steps);
    else if (self->n_values > 0 && status->value >= stop->value)
        run_stop(self, RUN_DONE, false, "an evaluation gave %.6g, and stop.value is %.6g", status->value, stop->value);
    else if (stop->time_ns > 0 && status->elapsed_s >= status->stop_time_s)
        run_stop(self, RUN_DONE, false, "stop.time has passed");
}

/* Actors and learners of our own end by themselves when all steps were taken, and the evaluator after them. */
static void stop_more(struct run *self, int64_t now_ns)
{
    bool foreign_actors = self->config->actors.command.count > 0;
    if (!self->patient || foreign_actors)
        run_ask(self, ROLE_ACTOR, 0, now_ns);
    if (!self->patient || (!our_learners(self) && run_running(self, ROLE_ACTOR) == 0))
        run_ask(self, ROLE_LEARNER, 0, now_ns);
    bool last_evaluation = self->patient && (our_learners(self) || run_running(self, ROLE_LEARNER) > 0);
    if (!last_evaluation)
        run_ask(self, ROLE_EVALUATOR, 0, now_ns);
    if (run_running(self, ROLE_ACTOR) + run_running(self, ROLE_LEARNER) + run_running(self, ROLE_EVALUATOR) > 0)
        return;
    if (self->broker_asked_ns == 0) {
        self->broker_asked_ns = now_ns;
        if (self->observer && !self->forced) { /* the last counts and evaluations */
            const struct observation before = self->seen;
            observer_look(self->observer, LOOK_MS, &self->seen);
            run_take_in(self, &before);
        }
        observer_destroy(&self->observer); /* that the broker goes away is no news */
        run_ask(self, ROLE_BROKER, 0, now_ns);
    } else if (now_ns - self->broker_asked_ns > BROKER_GRACE_NS && run_running(self, ROLE_BROKER) > 0) {
        run_kill_all(self);
    }
}

/* ---- the loop ---- */

static void resize(struct run *self, const struct status *status, int64_t now_ns)
{
    const struct plan *plan = self->options->plan;
    const struct launch_section *launch = &self->config->launch;
    if (!launch->resize || !self->options->auto_actors || !plan || self->phase >= PHASE_STOPPING)
        return;
    const struct resize_limits limits = {.least = 1,
                                         .most = plan->most_actors,
                                         .after_ns = launch->resize_after_ns,
                                         .margin = RESIZE_MARGIN,
                                         .predicted_actor_idle = plan->chosen.actor_idle,
                                         .predicted_learner_idle = plan->chosen.learner_idle,
                                         .cores = status->cores};
    const struct resize_seen seen = {.actors = self->actors_wanted,
                                     .actor_idle = status->actor_idle,
                                     .learner_idle = status->learner_idle,
                                     .cpu = status->cpu,
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

static void look(struct run *self, int64_t now_ns)
{
    struct status status;
    bool line = now_ns >= self->save_ns;
    if (self->observer && self->broker_asked_ns == 0) {
        const struct observation before = self->seen;
        observer_look(self->observer, LOOK_MS, &self->seen);
        run_take_in(self, &before);
        if (self->seen.broker && self->learners_started && !our_learners(self))
            put_back(self); /* ours do it themselves */
    }
    if (self->phase == PHASE_FILLING && self->seen.samples > 0) {
        self->phase = PHASE_RUNNING;
        self->running_ns = now_ns;
    }
    if (line) {
        self->save_ns = now_ns + SAVE_NS;
        run_measure_usage(self, now_ns);
    }
    run_status(self, &status);
    if (self->actors_started) {
        check_ends(self, &status);
        resize(self, &status, now_ns);
    }
    if (line)
        run_save(self, &status, true);
    screen_show(*self->options->screen, &status);
}

static void loop(struct run *self)
{
    run_add(self, ROLE_BROKER, 0);
    for (;;) {
        interrupts_wait(self->options->interrupts, TICK_MS);
        int64_t now_ns = clock_now(&self->clock);
        heed_interrupts(self);
        run_tend(self, now_ns);
        if (self->phase < PHASE_STOPPING && !self->actors_started)
            start_more(self, now_ns);
        if (self->phase >= PHASE_STOPPING) {
            stop_more(self, now_ns);
            uint32_t running = 0;
            for (enum role role = 0; role < ROLES; role++)
                running += run_running(self, role);
            if (running == 0)
                return;
        }
        if (now_ns >= self->look_ns || !self->actors_started) {
            self->look_ns = now_ns + LOOK_NS;
            look(self, now_ns);
        }
    }
}

/* ---- the end ---- */

/* The return of the parameters that are left: those of the last evaluation may be older. */
static void measure(struct run *self)
{
    char weights[FOLDER_SIZE + 32], log[FOLDER_SIZE + 32], tail[512];
    rp_error err = {0};
    struct process process = {0};
    folder_path(weights, sizeof weights, self->options->folder, LEARNER_STATE_FILE);
    if (!our_learners(self) || self->outcome != RUN_DONE || access(weights, R_OK) != 0)
        return;
    if (self->n_values > 0 && self->seen.value_learner_steps == self->seen.learner_steps) {
        self->final_value = self->seen.value;
        return;
    }
    char **argv = command_measure(&self->context, weights);
    folder_path(log, sizeof log, self->options->folder, "logs/measure.log");
    const struct process_options options = {
        .name = "measure", .argv = (const char *const *)argv, .log = log, .guard = self->options->guard};
    self->phase = PHASE_MEASURING;
    int64_t start_ns = clock_now(&self->clock);
    if (argv && process_start(&process, &options, start_ns, &err) == RP_OK) {
        int status = 0;
        while (!process_ended(&process, &status)) {
            struct status shown;
            interrupts_wait(self->options->interrupts, TICK_MS);
            if (self->options->interrupts->asked > self->interrupts_seen ||
                clock_now(&self->clock) - start_ns > MEASURE_MOST_NS)
                process_kill(&process);
            run_status(self, &shown);
            screen_show(*self->options->screen, &shown);
        }
        const char *found = strstr(process_tail(&process, tail, sizeof tail, 4), "mean return of ");
        unsigned long long episodes;
        if (status != 0 || !found ||
            sscanf(found, "mean return of %llu episodes: %lf", &episodes, &self->final_value) != 2)
            run_say(self, LEVEL_WARN, "A0411", "the last parameters could not be measured: see logs/measure.log");
    }
    command_free(&argv);
}

static void finish(struct run *self, rp_error *err)
{
    const struct run_options *options = self->options;
    struct status status;
    rp_error problem = {0};
    char metrics[FOLDER_SIZE + 32];
    measure(self);
    self->phase = self->outcome == RUN_FAILED ? PHASE_FAILED : PHASE_DONE;
    run_status(self, &status);
    run_save(self, &status, true);
    screen_show(*options->screen, &status);
    static const char *const exits[] = {[RUN_DONE] = "done", [RUN_STOPPED] = "stopped", [RUN_FAILED] = "failed"};
    const struct report report = {.last = &status,
                                  .exit = exits[self->outcome],
                                  .plan = options->plan,
                                  .plan_input = options->plan_input,
                                  .steady = run_steady(self),
                                  .final_value = self->final_value,
                                  .final_episodes = (uint32_t)self->config->evaluator.episodes,
                                  .legs = options->before ? options->before->legs + 1 : 1,
                                  .metrics = folder_path(metrics, sizeof metrics, options->folder, FOLDER_METRICS),
                                  .command = options->command};
    if (report_write(&report, options->folder, &problem) != RP_OK)
        run_say(self, LEVEL_ERROR, "A0412", "the report could not be written: %s", problem.text);
    screen_destroy(options->screen);
    if (options->print_report)
        report_print(&report, options->folder, stdout);
    if (self->outcome == RUN_FAILED)
        err_set(err, RP_INTERNAL, "%s", self->reason);
}

static rp_status open_run(struct run *self, rp_error *err)
{
    const struct run_options *options = self->options;
    char path[FOLDER_SIZE + 32];
    self->value_steps = calloc(STATUS_MAX_VALUES, sizeof *self->value_steps);
    self->values = calloc(STATUS_MAX_VALUES, sizeof *self->values);
    if (!self->value_steps || !self->values)
        return err_set(err, RP_NO_MEMORY, "no memory for a run");
    self->metrics = fopen(folder_path(path, sizeof path, options->folder, FOLDER_METRICS), "ae");
    if (!self->metrics)
        return err_set(err, RP_IO, "'%s' can not be written", path);
    folder_path(self->endpoints_file, sizeof self->endpoints_file, options->folder, "endpoints");
    unlink(self->endpoints_file); /* of a leg before */
    return RP_OK;
}

enum run_outcome run_do(const struct run_options *options, rp_error *err)
{
    char config_path[FOLDER_SIZE + 32];
    struct run self = {.options = options,
                       .config = options->config,
                       .clock = clock_system(),
                       .best = NAN,
                       .final_value = NAN,
                       .actors_wanted = (uint32_t)options->config->actors.count,
                       .seen = {.actor_idle = NAN, .learner_idle = NAN, .value = NAN, .actor_value = NAN}};
    self.start_ns = clock_now(&self.clock);
    if (options->before) {
        self.steps_before = options->before->steps;
        self.learner_steps_before = options->before->learner_steps;
    }
    self.context = (struct command_context){
        .config = options->config,
        .programs = options->programs,
        .config_path = folder_path(config_path, sizeof config_path, options->folder, FOLDER_CONFIG),
        .here = options->here,
        .folder = options->folder,
        .endpoints_file = self.endpoints_file,
        .learners = (uint32_t)options->config->learners.count,
        .resume = true}; /* a learner that starts again goes on from what it saved */
    if (open_run(&self, err) == RP_OK) {
        loop(&self);
        observer_destroy(&self.observer);
        finish(&self, err);
    } else {
        self.outcome = RUN_FAILED;
    }
    for (uint32_t i = 0; i < self.n_members; i++)
        free(self.members[i]);
    free(self.members);
    free(self.shown);
    free(self.value_steps);
    free(self.values);
    if (self.metrics)
        fclose(self.metrics);
    return self.outcome;
}
