#include "agent/program/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/base/error.h"
#include "proto/base/json.h"

struct measured {
    uint64_t episodes;
    double sum, squares, lowest, highest;
    uint64_t steps;
};

static void add_episode(struct measured *self, const struct episode *episode)
{
    self->lowest = self->episodes == 0 ? episode->value : fmin(self->lowest, episode->value);
    self->highest = self->episodes == 0 ? episode->value : fmax(self->highest, episode->value);
    self->episodes++;
    self->sum += episode->value;
    self->squares += episode->value * episode->value;
    self->steps += episode->steps;
}

static rp_status run_episode(struct environment_loop *loop, const struct worker *worker, bool show, rp_error *err)
{
    const rp_env_spec *spec = worker_spec(worker);
    if (show)
        show_head(spec, stdout);
    for (bool ended = false; !ended;) {
        if (worker_stopped(worker))
            return err_set(err, RP_CANCELLED, "stopped within an episode");
        double before = loop->running ? loop->episode.value : 0.0;
        RP_TRY(environment_loop_step(loop, &ended, err));
        /* The action was chosen for the older of the two observations. */
        if (show)
            show_step(spec, &loop->episode, &loop->actor->choice, loop->episode.value - before, loop->next, stdout);
    }
    if (show)
        show_end(&loop->episode, stdout);
    return RP_OK;
}

static void print_result(const struct measured *self, const char *file, uint64_t learner_steps, bool json)
{
    double n = (double)self->episodes, mean = self->sum / n;
    double deviation = sqrt(fmax(0.0, self->squares / n - mean * mean));
    if (!json) {
        printf("mean return of %llu episodes: %.6g\n", (unsigned long long)self->episodes, mean);
        printf("from %.6g to %.6g, standard deviation %.6g, %.6g steps an episode\n", self->lowest, self->highest,
               deviation, (double)self->steps / n);
        printf("%s, of learner step %llu\n", file, (unsigned long long)learner_steps);
        return;
    }
    struct json out = {0};
    json_open(&out, '{');
    json_key(&out, "weights");
    json_string(&out, file);
    json_key(&out, "learner_steps");
    json_unsigned(&out, learner_steps);
    json_key(&out, "episodes");
    json_unsigned(&out, self->episodes);
    json_key(&out, "return");
    json_double(&out, mean);
    json_key(&out, "lowest");
    json_double(&out, self->lowest);
    json_key(&out, "highest");
    json_double(&out, self->highest);
    json_key(&out, "deviation");
    json_double(&out, deviation);
    json_key(&out, "episode_length");
    json_double(&out, (double)self->steps / n);
    json_close(&out, '}');
    char *text = json_take(&out);
    puts(text ? text : "");
    free(text);
}

rp_status measure_file(struct worker *worker, struct variables *variables, struct environment_loop *loop, rp_error *err)
{
    const struct worker_options *options = worker->options;
    struct measured measured = {0};
    RP_TRY(weights_read_file(options->weights, worker->agent->tensors, worker->agent->n_policy, err));
    rp_error none = {0};
    if (variables_load(variables, options->weights, &none) != RP_OK)
        variables->steps = 0; /* a policy of another program may not contain its learner step */
    for (int64_t i = 0; i < worker->config->evaluator.episodes; i++) {
        RP_TRY(run_episode(loop, worker, options->show && !options->json && i == 0, err));
        add_episode(&measured, &loop->episode);
    }
    print_result(&measured, options->weights, variables->steps, options->json);
    return RP_OK;
}
