/* How many shards the broker gets: pure, from runs with different numbers of them.
 *
 * A shard has one core thread. More shards pay where that thread is the bottleneck and cores are left for more of them; only a run
 * can show by how much, so the number is doubled as long as runs give clearly more. */
#include <math.h>
#include <string.h>

#include "agent/launch/plan/plan_impl.h"
#include "proto/base/format.h"

#define BUSY 0.6        /* share of the time: below it, the core thread holds nobody back */
#define SHARD_CORES 1.0 /* cores that must be free for more shards: a core thread and what moves its bytes */
#define PAYS 0.05       /* share of the rate that twice the shards must add */

/* The run of a pair with this many shards; NULL: there is none. */
static const struct plan_load *load_of(const struct plan_input *input, const struct plan_choice *choice,
                                       uint32_t shards)
{
    for (uint32_t i = 0; i < input->n_loads; i++) {
        const struct plan_load *load = &input->loads[i];
        if (load->actors == choice->actors && load->learners == choice->learners && load->shards == shards)
            return load;
    }
    return NULL;
}

void plan_add_load(struct plan_input *input, const struct plan_load *load)
{
    const struct plan_choice pair = {.actors = load->actors, .learners = load->learners};
    const struct plan_load *known = load_of(input, &pair, load->shards);
    if (known && !(known->inserts > load->inserts)) /* other programs only slow a run down */
        input->loads[known - input->loads] = *load;
    else if (!known && input->n_loads < PLAN_MAX_LOADS)
        input->loads[input->n_loads++] = *load;
}

static double home_cores(const struct plan_input *input)
{
    return input->n_hosts > 1 ? input->hosts[0].cores : input->cores;
}

static double free_cores(const struct plan_input *input, const struct plan_load *load)
{
    return fmax(0.0, home_cores(input) - plan_known(load->cores));
}

/* A run with so many shards left reasons to try more. */
static bool is_short(const struct plan_input *input, const struct plan_load *load)
{
    return load->core >= BUSY && free_cores(input, load) >= SHARD_CORES;
}

static double gain(const struct plan_load *more, const struct plan_load *fewer)
{
    return fewer->inserts > 0 ? more->inserts / fewer->inserts - 1.0 : 0.0;
}

/* The number that runs support: more as long as each doubling pays. */
static const struct plan_load *best_load(const struct plan_input *input, const struct plan_choice *choice,
                                         const struct plan_load **refused)
{
    const struct plan_load *best = load_of(input, choice, 1);
    *refused = NULL;
    while (best && is_short(input, best)) {
        const struct plan_load *more = load_of(input, choice, 2 * best->shards);
        if (more && gain(more, best) < PAYS)
            *refused = more;
        if (!more || *refused)
            break;
        best = more;
    }
    return best;
}

bool plan_next_shards(const struct plan_input *input, const struct plan_choice *choice, uint32_t *shards)
{
    const struct plan_load *refused, *best = best_load(input, choice, &refused);
    if (input->fixed_shards || !best || refused || !is_short(input, best))
        return false;
    *shards = 2 * best->shards;
    return *shards <= input->most_shards && *shards <= home_cores(input);
}

static void explain_fixed(const struct plan_input *input, const struct plan_load *load, struct text *text)
{
    text_add(text, "as broker.shards says");
    if (!load || !isfinite(load->core))
        return;
    text_add(text, "; the busiest core thread works %.0f%% of the time", 100.0 * load->core);
    if (input->fixed_shards > 1 && load->core * input->fixed_shards < BUSY)
        text_add(text, ", so one would do");
    else if (input->fixed_shards == 1 && is_short(input, load))
        text_add(text, ", so more may pay (auto measures it)");
}

/* Why the number is not larger. */
static void explain_end(const struct plan_input *input, const struct plan_load *best, const struct plan_load *refused,
                        struct text *text)
{
    const char *whose = best->shards > 1 ? "the busiest core thread" : "the broker's core thread";
    text_add(text, "%s works %.0f%% of the time", whose, 100.0 * best->core);
    if (best->core < BUSY)
        text_add(text, ": more shards would gain nothing");
    else if (free_cores(input, best) < SHARD_CORES)
        text_add(text, ", but only %.2g of %.3g cores are left for more shards", free_cores(input, best),
                 home_cores(input));
    else if (refused)
        text_add(text, ", but %u shards gave only %+.0f%%", refused->shards, 100.0 * gain(refused, best));
    else if (2 * best->shards > input->most_shards)
        text_add(text, ", but the table's sampler, limiter or sizes allow no %u shards", 2 * best->shards);
    else
        text_add(text, ", and more were not measured");
}

void plan_choose_shards(const struct plan_input *input, const struct plan_choice *choice, struct plan_broker *out)
{
    struct text text = {0};
    const struct plan_load *refused, *best = best_load(input, choice, &refused), *one = load_of(input, choice, 1);
    *out = (struct plan_broker){.shards = input->fixed_shards ? input->fixed_shards : best ? best->shards : 1};
    out->gain = !input->fixed_shards && best && best->shards > 1 ? gain(best, one) : 0.0;
    if (input->fixed_shards) {
        explain_fixed(input, load_of(input, choice, input->fixed_shards), &text);
    } else if (!best || !isfinite(best->core)) {
        text_add(&text, "it was not measured how busy the broker is");
    } else {
        if (best->shards > 1)
            text_add(&text, "%+.0f%% inserts/s against one; ", 100.0 * out->gain);
        explain_end(input, best, refused, &text);
    }
    snprintf(out->reason, sizeof out->reason, "%s", text_get(&text));
    text_fini(&text);
}
