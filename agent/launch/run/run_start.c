/* The start of a run, step by step: broker, learners, their first parameters, actors and evaluator; and the counters
 * that a new broker has to be given or has to forget. */
#include "agent/launch/run/run_impl.h"
#include "agent/program/worker.h"
#include "replay/params.h"

/* A broker that does not listen by then has a problem that a restart does not solve. */
#define READY_NS (30 * NS_PER_S)
/* The same for a broker that loads tables first. */
#define LOADED_NS (1800 * NS_PER_S)
/* A learner gives a new broker the step counters with its next report. After this much more than a report's interval
 * the launcher does it. */
#define PUT_BACK_NS (2 * NS_PER_S)

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
void run_put_back_later(struct run *self, int64_t now_ns)
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

void run_fill_steps(struct run *self)
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
void run_start_more(struct run *self, int64_t now_ns)
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
        if (config->evaluator.on && config->learners.on)
            run_add(self, ROLE_EVALUATOR, 0);
        if (self->phase == PHASE_STARTING)
            self->phase = PHASE_FILLING;
    }
}
