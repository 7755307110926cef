/* report.json. */
#include <math.h>
#include <stdlib.h>

#include "agent/launch/report/report_impl.h"
#include "proto/base/json.h"

/* Writes one of the three columns of the table: predicted, achieved or their ratio. */
static void put_rows(struct json *out, const char *name, const struct report_row rows[REPORT_ROWS], int which)
{
    static const char *const keys[REPORT_ROWS] = {"inserts", "samples", "spi", "actor_idle", "learner_idle"};
    json_key(out, name);
    json_open(out, '{');
    for (uint32_t i = 0; i < REPORT_ROWS; i++)
        json_real(out, keys[i],
                  which == 0   ? rows[i].predicted
                  : which == 1 ? rows[i].achieved
                               : rows[i].achieved / rows[i].predicted);
    json_close(out, '}');
}

static void put_causes(struct json *out, const char *name, const double shares[IDLE_CAUSES], uint32_t causes)
{
    json_key(out, name);
    json_open(out, '{');
    for (uint32_t i = 0; i < IDLE_CAUSES; i++)
        if (causes >> i & 1)
            json_real(out, idle_names[i], shares[i]);
    json_close(out, '}');
}

static void put_waits(struct json *out, const struct report_steady *rates)
{
    struct idle_shares none;
    idle_shares_none(&none);
    put_causes(out, "actor_idle_by", isfinite(rates->actor_idle) ? rates->idle_by.actor : none.actor, IDLE_OF_ACTOR);
    put_causes(out, "learner_idle_by", isfinite(rates->learner_idle) ? rates->idle_by.learner : none.learner,
               IDLE_OF_LEARNER);
}

static void put_rates(struct json *out, const struct report_steady *rates)
{
    json_real(out, "seconds", rates->seconds);
    json_real(out, "inserts", rates->inserts);
    json_real(out, "samples", rates->samples);
    json_real(out, "spi", rates->spi);
    json_real(out, "actor_idle", rates->actor_idle);
    json_real(out, "learner_idle", rates->learner_idle);
    put_waits(out, rates);
}

static void put_compared(struct json *out, const struct report *self, const struct report_stretch *stretch)
{
    struct report_row rows[REPORT_ROWS];
    report_rows(self, stretch, rows);
    put_rows(out, "predicted", rows, 0);
    put_rows(out, "achieved", rows, 1);
    put_rows(out, "ratio", rows, 2);
}

/* The first stretch, which has the planned counts, is repeated at the top. */
static void put_stretches(struct json *out, const struct report *self)
{
    static const struct report_steady none = {.spi = NAN, .actor_idle = NAN, .learner_idle = NAN};
    put_compared(out, self, self->n_stretches ? &self->stretches[0] : NULL);
    json_key(out, "steady");
    json_open(out, '{');
    put_rates(out, self->n_stretches && self->stretches[0].settled ? &self->stretches[0].rates : &none);
    json_close(out, '}');
    json_key(out, "stretches");
    json_open(out, '[');
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        const struct report_stretch *stretch = &self->stretches[i];
        json_open(out, '{');
        json_count(out, "actors", stretch->actors);
        json_count(out, "learners", stretch->learners);
        json_real(out, "from_s", stretch->from_s);
        json_real(out, "seconds", stretch->rates.seconds);
        json_key(out, "settled");
        json_boolean(out, stretch->settled);
        put_compared(out, self, stretch);
        put_waits(out, &stretch->rates);
        json_close(out, '}');
    }
    json_close(out, ']');
}

/* null: there is no best.weights. */
static void put_best(struct json *out, const struct best *best)
{
    json_key(out, "best_weights");
    if (!best) {
        json_null(out);
        return;
    }
    json_open(out, '{');
    json_real(out, "return", best->value);
    json_count(out, "episodes", best->episodes);
    json_count(out, "environment_steps", best->environment_steps);
    json_count(out, "learner_steps", best->learner_steps);
    json_close(out, '}');
}

static void put_run(struct json *out, const struct report *self, const struct report_data *data)
{
    const struct status *last = self->last;
    json_text(out, "name", last->name);
    json_text(out, "exit", phase_name(self->last->phase));
    json_text(out, "reason", last->reason);
    json_text(out, "command", self->command);
    json_count(out, "legs", self->legs);
    json_real(out, "unix_s", last->unix_s);
    json_real(out, "wall_seconds", last->elapsed_s);
    json_count(out, "steps", last->steps);
    json_count(out, "learner_steps", last->learner_steps);
    json_real(out, "final_value", self->final_value);
    json_count(out, "final_episodes", self->final_episodes);
    json_text(out, "final_weights", self->final_weights);
    json_real(out, "value", last->value);
    json_real(out, "best", last->best);
    json_real(out, "actor_value", series_last(&data->run, COLUMN_ACTOR_VALUE));
    put_best(out, self->best);
    json_real(out, "stop_value", last->stop_value);
    json_count(out, "restarts", last->restarts);
    json_count(out, "actors", last->actors_wanted);
    json_count(out, "learners", last->learners_wanted);
    json_count(out, "shards", last->shards);
    json_text(out, "shards_reason", last->shards_reason);
    json_real(out, "spi_target", last->spi_target);
    json_real(out, "peak_memory", data->peak_memory);
    json_real(out, "peak_cpu", data->peak_cpu);
}

static void put_hosts(struct json *out, const struct status *last)
{
    json_key(out, "hosts");
    json_open(out, '[');
    for (uint32_t i = 0; i < report_hosts(last); i++) {
        const struct status_host *host = &last->hosts[i];
        json_open(out, '{');
        json_text(out, "name", host->name);
        json_text(out, "model", host->model);
        json_count(out, "actors", host->actors_wanted);
        json_count(out, "learners", host->learners_wanted);
        json_real(out, "cores", host->cores);
        json_real(out, "mean_cpu", host->mean_cpu);
        json_count(out, "times", host->times);
        json_count(out, "losses", host->losses);
        json_real(out, "lost_s", host->lost_s);
        json_close(out, '}');
    }
    json_close(out, ']');
}

char *report_json(const struct report *self, const struct report_data *data)
{
    struct json out = {0};
    json_open(&out, '{');
    put_run(&out, self, data);
    put_stretches(&out, self);
    put_hosts(&out, self->last);
    json_key(&out, "events");
    json_open(&out, '[');
    for (uint32_t i = 0; i < data->n_events; i++) {
        json_open(&out, '{');
        json_real(&out, "elapsed_s", data->events[i].elapsed_s);
        json_text(&out, "event", data->events[i].text);
        json_close(&out, '}');
    }
    json_close(&out, ']');
    char *head = json_take(&out);
    /* The plan is JSON already. */
    char *plan = self->plan && self->plan_input ? plan_to_json(self->plan, self->plan_input) : NULL;
    struct text text = {0};
    if (head)
        text_add(&text, "%s, \"plan\": %s}\n", head, plan ? plan : "null");
    free(head);
    free(plan);
    return text.data;
}
