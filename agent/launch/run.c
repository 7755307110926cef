#include "agent/launch/run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/run_impl.h"
#include "agent/run/worker.h"
#include "proto/base/error.h"
#include "proto/base/need.h"
#include "replay/collective.h"

#define LOOK_NS (NS_PER_S / 2)
#define SAVE_NS NS_PER_S
#define RESIZE_MARGIN 0.2
/* A broker that does not listen by then has a problem that a restart does not solve. */
#define READY_NS (30 * NS_PER_S)
/* The same for a broker that loads tables first. */
#define LOADED_NS (1800 * NS_PER_S)
/* A learner gives a new broker the step counters with its next report. After this much more than a report's interval
 * the launcher does it. */
#define PUT_BACK_NS (2 * NS_PER_S)
/* Pause before options->limit acts again. */
#define LIMIT_PAUSE_NS (5 * NS_PER_S)
#define MEASURE_MOST_NS (120 * NS_PER_S)

/* ---- the start, step by step: broker, learners, their first parameters, actors and evaluator ---- */

/* Restores the counters of before a resume, or of another broker: exploration and stop.steps continue from there. */
static bool put_back(struct run *self)
{
    const struct {
        const char *name;
        int64_t before;
    } counters[] = {{COUNTER_STEPS, (int64_t)self->steps_before}, {COUNTER_TAKEN, (int64_t)self->steps_shown}};
    if (self->steps_before == 0 || self->put_back)
        return self->put_back = true;
    rp_client *client = observer_client(self->observer);
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        int64_t total = 0, before = counters[i].before;
        if (!client || rp_counter_read(client, counters[i].name, RUN_LOOK_MS, &total, NULL) != RP_OK ||
            (total < before &&
             rp_counter_add(client, counters[i].name, before - total, RUN_LOOK_MS, NULL, NULL) != RP_OK))
            return false;
    }
    return self->put_back = true;
}

/* Our learner does this by itself, unless it was restarted too. */
static void put_back_later(struct run *self, int64_t now_ns)
{
    bool by_learner = self->config->learners.on && !run_is_custom(self, ROLE_LEARNER);
    int64_t patience_ns = by_learner ? self->config->report.every_ns + PUT_BACK_NS : 0;
    if (self->put_back || !self->seen.broker || !self->learners_started) {
        self->put_back_ns = 0;
        return;
    }
    if (self->put_back_ns == 0)
        self->put_back_ns = now_ns + patience_ns;
    if (now_ns >= self->put_back_ns)
        put_back(self);
}

static void fill_steps(struct run *self)
{
    uint64_t full = (uint64_t)self->config->stop.steps;
    if (!self->patient || !self->seen.broker || self->seen.steps >= full)
        return;
    if (self->steps_before < full)
        self->steps_before = full;
    self->put_back = false;
    put_back(self);
}

/* A new run may begin with the tables of another one (broker.checkpoint.dir), and those with its counters and
 * parameters. How far that one was is not how far this one is. */
static bool forget(struct run *self)
{
    static const char *const names[] = {COUNTER_STEPS, COUNTER_TAKEN, COUNTER_LEARNER_STEPS, COUNTER_LEARNER_END};
    rp_client *client = observer_client(self->observer);
    if (self->options->before || !config_folder(&self->config->broker))
        return true;
    observer_look(self->observer, RUN_LOOK_MS, &self->seen);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t total = 0;
        if (!client || rp_counter_read(client, names[i], RUN_LOOK_MS, &total, NULL) != RP_OK ||
            (total != 0 && rp_counter_add(client, names[i], -total, RUN_LOOK_MS, NULL, NULL) != RP_OK))
            return false;
    }
    self->policy_before = self->seen.policy;
    self->seen.steps = self->seen.taken = self->seen.learner_steps = 0;
    return self->seen.broker;
}

/* A broker may end between writing its file and answering: then the connection is tried again until another broker is
 * there. */
static void open_observer(struct run *self, int64_t now_ns)
{
    rp_error err = {0};
    if (run_running(self, ROLE_BROKER) > 0 && endpoints_read(self->endpoints_file, &self->endpoints, &err) == RP_OK) {
        self->context.endpoints = &self->endpoints; /* a restarted broker listens at the same endpoints */
        char key[1100];
        const struct observe_options options = {.service = self->endpoints.service,
                                                .table = self->config->adder.table,
                                                .folder = self->options->folder,
                                                .every_ns = self->config->report.every_ns,
                                                .foreign_actors = self->config->actors.command.count > 0,
                                                .key_file =
                                                    run_keys_file(self->options->keys, "admin", key, sizeof key),
                                                .connect_ms = RUN_LOOK_MS};
        self->observer = observer_new(&options, &err);
        if (self->observer && !forget(self))
            observer_destroy(&self->observer);
    }
    int64_t ready_ns = config_folder(&self->config->broker) ? LOADED_NS : READY_NS;
    if (!self->observer && now_ns - self->start_ns > ready_ns)
        run_stop(self, RUN_FAILED, false, "the broker was not ready within %d s%s%.300s: see logs/broker.log",
                 (int)(ready_ns / NS_PER_S), err.text[0] ? ": " : "", err.text);
}

/* Each step waits for the one before: broker, learners, their first parameters, actors. */
static void start_more(struct run *self, int64_t now_ns)
{
    const struct run_config *config = self->config;
    if (!self->observer) {
        open_observer(self, now_ns);
    } else if (!self->learners_started && self->seen.broker && put_back(self)) {
        self->learners_started = true;
        for (uint32_t i = 0; i < run_config_learners(config); i++)
            run_add(self, ROLE_LEARNER, i);
    } else if (self->learners_started &&
               (self->seen.policy > self->policy_before || run_is_custom(self, ROLE_LEARNER) || !config->learners.on)) {
        self->actors_started = true;
        self->actors_wanted = 0;
        run_set_actors(self, run_config_actors(config), now_ns);
        if (config->evaluator.episodes > 0 && config->learners.on)
            run_add(self, ROLE_EVALUATOR, 0);
        if (self->phase == PHASE_STARTING)
            self->phase = PHASE_FILLING;
    }
}

/* ---- stopping ---- */

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

static void keep_time(struct run *self)
{
    uint32_t running = 0;
    if (self->out_of_time || run_time_left(self) > 0.0)
        return;
    self->out_of_time = true;
    for (enum role role = 0; role < ROLES; role++)
        running += run_running(self, role);
    if (running == 0)
        return;
    run_say(self, LEVEL_WARN, "A0420", "stop.time (%.6g s) has passed: %u process%s not ended, and %s killed",
            (double)self->config->stop.time_ns * 1e-9, running, running == 1 ? " has" : "es have",
            running == 1 ? "is" : "are");
    run_kill_all(self);
}

void run_heed_limit(struct run *self, int64_t now_ns)
{
    const struct run_limit *limit = self->options->limit;
    /* Whoever asks to stop after the warning wants the run to end. */
    if (!limit || self->outcome != RUN_STOPPED || self->options->interrupts->last != SIGUSR1)
        return;
    if (self->limit_ns == 0)
        self->limit_ns = now_ns + limit->after_ns;
    if (now_ns < self->limit_ns)
        return;
    run_say(self, LEVEL_WARN, "A0421", "the run still saves %.0f s after the warning of the time limit",
            (double)limit->after_ns * 1e-9);
    self->limit_ns = limit->act(limit->context) ? INT64_MAX : now_ns + LIMIT_PAUSE_NS;
}

/* ---- a look ---- */

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
    if (!self->options->auto_actors || !plan || self->phase >= PHASE_STOPPING)
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
        put_back_later(self, now_ns);
        if (self->phase == PHASE_STOPPING)
            fill_steps(self);
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

/* ---- the loop ---- */

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
            start_more(self, now_ns);
        if (self->phase >= PHASE_STOPPING) {
            keep_time(self);
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
        run_check_done(self); /* after the look: a stop condition that was met is the better reason */
    }
}

/* ---- after the last process has ended: measures the last parameters and writes the report ---- */

/* Waits for the measuring process to end; a request to stop shortens the wait. */
static int await_measured(struct run *self, struct process *process)
{
    int64_t end_ns = clock_now(&self->clock) + MEASURE_MOST_NS;
    int status = 0;
    while (!process_ended(process, &status)) {
        interrupts_wait(self->options->interrupts, RUN_TICK_MS);
        if (self->options->interrupts->asked > 0 || clock_now(&self->clock) > end_ns || run_time_left(self) <= 0.0)
            process_kill(process);
        run_hosts_tend(self, clock_now(&self->clock)); /* their connections stay open */
        run_look(self, clock_now(&self->clock));
    }
    return status;
}

/* Measures in a process of its own; NAN: that process printed no return. */
static double measure_weights(struct run *self, const char *weights)
{
    char log[FOLDER_SIZE + 32];
    rp_error err = {0};
    struct process process = {0};
    double value = NAN;
    unsigned long long episodes;
    char **argv = command_evaluate(&self->context, &(struct command_evaluation){.weights = weights});
    run_folder_path(log, sizeof log, self->options->folder, "logs/measure.log");
    char **environment = command_environment(&self->context, ROLE_EVALUATOR, 0);
    const struct process_options options = {.name = "measure",
                                            .argv = (const char *const *)argv,
                                            .environment = (const char *const *)environment,
                                            .log = log,
                                            .guard = self->options->guard};
    if (process_start(&process, &options, clock_now(&self->clock), &err) == RP_OK &&
        await_measured(self, &process) == 0) {
        char tail[512];
        const char *found = strstr(process_tail(&process, tail, sizeof tail, 4), "mean return of ");
        if (!found || sscanf(found, "mean return of %llu episodes: %lf", &episodes, &value) != 2)
            value = NAN;
    }
    command_free(&argv);
    command_free(&environment);
    return value;
}

/* Measures the last parameters: those of the last evaluation may be older. */
static void measure_last(struct run *self)
{
    char weights[FOLDER_SIZE + 32];
    run_folder_path(weights, sizeof weights, self->options->folder, LEARNER_STATE_FILE);
    /* A user's own learner may save nothing. */
    if (self->config->evaluator.episodes == 0 || self->outcome != RUN_DONE || self->interrupts_seen > 0 ||
        access(weights, R_OK) != 0)
        return;
    self->final.episodes = (uint64_t)self->config->evaluator.episodes;
    self->final_weights = LEARNER_STATE_FILE;
    if (self->n_values > 0 && self->seen.value_learner_steps == self->seen.learner_steps) {
        self->final.value = self->seen.value;
        return;
    }
    self->phase = PHASE_MEASURING;
    if (run_time_left(self) > 0.0)
        self->final.value = measure_weights(self, weights);
    if (isnan(self->final.value))
        run_say(self, LEVEL_WARN, "A0411", "the last parameters %s",
                self->options->interrupts->asked > 0 ? "were not measured: the run was asked to end"
                : run_time_left(self) <= 0.0         ? "were not measured: stop.time has passed"
                                                     : "could not be measured: see logs/measure.log");
}

/* The evaluator has ended: from here on the launcher may change best.weights. */
static void keep_if_best(struct run *self)
{
    char best[FOLDER_SIZE + 32], last[FOLDER_SIZE + 32];
    rp_error err = {0};
    self->final.environment_steps = self->seen.steps;
    self->final.learner_steps = self->seen.learner_steps;
    if (!best_replaces(&self->final, self->best_known ? &self->best_kept : NULL))
        return;
    run_folder_path(best, sizeof best, self->options->folder, BEST_WEIGHTS_FILE);
    run_folder_path(last, sizeof last, self->options->folder, LEARNER_STATE_FILE);
    if (best_write_from(best, last, &self->final, &err) == RP_OK) {
        self->best_kept = self->final;
        self->best_known = true;
    } else {
        run_say(self, LEVEL_ERROR, "A0419", "the parameters of the best evaluation could not be saved: %s", err.text);
    }
}

/* The result of the run: the return of the parameters that reached its goal, or else of the last ones. */
static void conclude(struct run *self)
{
    char path[FOLDER_SIZE + 32];
    rp_error err = {0};
    run_folder_path(path, sizeof path, self->options->folder, BEST_WEIGHTS_FILE);
    self->best_known = self->config->evaluator.episodes > 0 && best_read(path, &self->best_kept, &err) == RP_OK;
    if (self->reached && self->best_known && self->best_kept.value >= self->config->stop.value) {
        self->final = self->best_kept;
        self->final_weights = BEST_WEIGHTS_FILE;
        return;
    }
    if (self->reached)
        run_say(self, LEVEL_WARN, "A0418",
                "the parameters that reached stop.value were not saved (%.300s): see logs/evaluator-0.log", err.text);
    measure_last(self);
    keep_if_best(self);
}

static void finish(struct run *self, rp_error *err)
{
    const struct run_options *options = self->options;
    struct status status;
    rp_error problem = {0};
    char metrics[FOLDER_SIZE + 32];
    conclude(self);
    static const enum phase phases[] = {
        [RUN_DONE] = PHASE_DONE, [RUN_STOPPED] = PHASE_STOPPED, [RUN_FAILED] = PHASE_FAILED};
    self->phase = phases[self->outcome];
    run_status(self, &status);
    run_save(self, &status);
    screen_show(*options->screen, &status);
    struct report report = {.last = &status,
                            .plan = options->plan,
                            .plan_input = options->plan_input,
                            .final_value = self->final.value,
                            .final_episodes = (uint32_t)self->final.episodes,
                            .final_weights = self->final_weights,
                            .best = self->best_known ? &self->best_kept : NULL,
                            .legs = options->before ? options->before->legs + 1 : 1,
                            .metrics = run_folder_path(metrics, sizeof metrics, options->folder, FOLDER_METRICS),
                            .command = options->command};
    report.n_stretches = run_stretches(self, report.stretches);
    if (report_write(&report, options->folder, &problem) != RP_OK)
        run_say(self, LEVEL_ERROR, "A0412", "the report could not be written: %s", problem.text);
    screen_destroy(options->screen);
    struct text text = {0};
    report_text(&text, &report, options->folder);
    fputs(options->print_report ? text_get(&text) : "", stdout);
    text_fini(&text);
    if (self->outcome == RUN_FAILED) {
        fflush(stdout);
        fprintf(stderr, "replay-launch: %s\n", self->cause);
        err_set(err, RP_INTERNAL, "%s", self->reason);
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
    self->value_steps = need_alloc(STATUS_MAX_VALUES * sizeof *self->value_steps);
    self->values = need_alloc(STATUS_MAX_VALUES * sizeof *self->values);
    run_folder_path(path, sizeof path, options->folder, FOLDER_METRICS);
    if (history_open(&self->history, path, err) != RP_OK)
        return err->status;
    run_folder_path(self->endpoints_file, sizeof self->endpoints_file, options->folder, "endpoints");
    unlink(self->endpoints_file); /* of an earlier leg */
    stop_note_drop(options->folder);
    if (!options->before)
        set_aside(self);
    run_hosts_open(self);
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
    if (open_run(&self, err) == RP_OK) {
        loop(&self);
        observer_destroy(&self.observer);
        finish(&self, err);
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
    free(self.events);
    free(self.value_steps);
    free(self.values);
    history_close(&self.history);
    return self.outcome;
}
