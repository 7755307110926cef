/* How many shards the broker gets: pure, from runs with different numbers of them.
 *
 * A shard has one core thread. More shards pay where that thread is the bottleneck and cores are left for more of them; only a run
 * can show by how much, so the number is doubled as long as runs give clearly more. Actors and learners that are just enough for one
 * core thread cannot show what two of them do: the counts that the file leaves open grow with the shards. */
#include <math.h>
#include <string.h>

#include "agent/launch/plan/plan_impl.h"
#include "proto/base/format.h"

/* Share of the time below which the core thread holds nobody back. Above it, a run decides: where clients wait for each reply before
 * they go on, a core thread that works half of the time is half of the way. */
#define BUSY 0.4
#define SHARD_CORES 1.0 /* cores that must be free for more shards: a core thread and what moves its bytes */
#define PAYS 0.1        /* share of the rate that twice the shards must add */
#define FULL 0.9        /* share of the time from which on the core thread bounds a pair */

/* ---- runs ---- */

/* The run of a pair with this many shards; NULL: there is none. */
static const struct plan_load *load_of(const struct plan_input *input, uint32_t actors, uint32_t learners,
                                       uint32_t shards)
{
    for (uint32_t i = 0; i < input->n_loads; i++) {
        const struct plan_load *load = &input->loads[i];
        if (load->shards == shards && load->joint.actors == actors && load->joint.learners == learners)
            return load;
    }
    return NULL;
}

/* The fastest run with this many shards whose counts the file allows; NULL: there is none. */
static const struct plan_load *fastest(const struct plan_input *input, uint32_t shards)
{
    const struct plan_load *found = NULL;
    for (uint32_t i = 0; i < input->n_loads; i++) {
        const struct plan_load *load = &input->loads[i];
        if (load->shards != shards || (input->fixed_actors && load->joint.actors != input->fixed_actors) ||
            (input->fixed_learners && load->joint.learners != input->fixed_learners))
            continue;
        if (!found || load->joint.inserts > found->joint.inserts)
            found = load;
    }
    return found;
}

void plan_add_load(struct plan_input *input, const struct plan_load *load)
{
    const struct plan_load *known = load_of(input, load->joint.actors, load->joint.learners, load->shards);
    if (known && !(known->joint.inserts > load->joint.inserts)) /* other programs only slow a run down */
        input->loads[known - input->loads] = *load;
    else if (!known && input->n_loads < PLAN_MAX_LOADS)
        input->loads[input->n_loads++] = *load;
}

/* The run of a choice for which auto has chosen shards; NULL: there is none. */
static const struct plan_load *auto_load(const struct plan_input *input, const struct plan_choice *choice)
{
    return choice->shards > 1 && !input->fixed_shards ? fastest(input, choice->shards) : NULL;
}

const struct plan_joint *plan_run_of(const struct plan_input *input, const struct plan_choice *choice)
{
    const struct plan_load *load = auto_load(input, choice);
    return load ? &load->joint : plan_joint_of(input, choice->actors, choice->learners);
}

double plan_core_of(const struct plan_input *input, const struct plan_choice *choice)
{
    const struct plan_load *load = auto_load(input, choice);
    if (!load)
        load = load_of(input, choice->actors, choice->learners, input->fixed_shards ? input->fixed_shards : 1);
    return load ? load->core : NAN;
}

/* ---- what runs say ---- */

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
    return fewer->joint.inserts > 0 ? more->joint.inserts / fewer->joint.inserts - 1.0 : 0.0;
}

/* The number that runs support: more as long as each doubling pays. */
static const struct plan_load *best_load(const struct plan_input *input, const struct plan_choice *choice,
                                         const struct plan_load **refused)
{
    const struct plan_load *best = load_of(input, choice->actors, choice->learners, 1);
    *refused = NULL;
    while (best && is_short(input, best)) {
        const struct plan_load *more = fastest(input, 2 * best->shards);
        if (more && gain(more, best) < PAYS)
            *refused = more;
        if (!more || *refused)
            break;
        best = more;
    }
    return best;
}

/* ---- the next run ---- */

static uint32_t grow(uint32_t count, double factor, uint32_t fixed, uint32_t bound)
{
    double most = bound && bound < PLAN_MAX_COUNT ? bound : PLAN_MAX_COUNT;
    double more = fmax(count, fmin(most, round(count * factor)));
    return fixed ? fixed : (uint32_t)more;
}

/* Twice the shards get twice the processes, as far as cores, memory and the file allow. */
static void grow_pair(const struct plan_input *input, const struct plan_load *best, struct plan_joint *out)
{
    double used = plan_known(best->joint.cpu), left = input->cores - plan_known(best->joint.others);
    double factor = fmax(1.0, fmin(2.0, used > 0 ? left / used : 2.0));
    uint32_t bound = input->max_actors;
    if (input->n_hosts > 1) {
        uint32_t take = plan_hosts_take(input);
        bound = bound && bound < take ? bound : take;
    }
    *out = (struct plan_joint){
        .actors = grow(best->joint.actors, factor, input->fixed_actors, bound),
        .learners = grow(best->joint.learners, factor, input->fixed_learners, input->max_learners),
    };
    struct plan_model model;
    struct plan_choice choice;
    plan_model_init(&model, input);
    plan_model_counts(&model, out->actors, out->learners, &choice);
    plan_model_fini(&model);
    if (!plan_fits(input, &choice))
        *out = (struct plan_joint){.actors = best->joint.actors, .learners = best->joint.learners};
}

bool plan_next_shards(const struct plan_input *input, const struct plan_choice *choice, struct plan_load *next)
{
    const struct plan_load *refused, *best = best_load(input, choice, &refused);
    *next = (struct plan_load){.shards = 1, .joint = {.actors = choice->actors, .learners = choice->learners}};
    if (input->fixed_shards || input->n_loads == PLAN_MAX_LOADS)
        return false;
    if (!best)
        return true;
    next->shards = 2 * best->shards;
    if (refused || !is_short(input, best) || next->shards > input->most_shards || next->shards > home_cores(input))
        return false;
    grow_pair(input, best, &next->joint);
    return true;
}

/* ---- the choice ---- */

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
        text_add(text, ": more shards would gain little");
    else if (free_cores(input, best) < SHARD_CORES)
        text_add(text, ", but only %.2g of %.3g cores are left for more shards", free_cores(input, best),
                 home_cores(input));
    else if (refused && gain(refused, best) < 0)
        text_add(text, ", but %u shards gave %.0f%% less", refused->shards, -100.0 * gain(refused, best));
    else if (refused)
        text_add(text, ", but %u shards gave only %+.0f%%", refused->shards, 100.0 * gain(refused, best));
    else if (2 * best->shards > input->most_shards)
        text_add(text, ", but the table's sampler, limiter or sizes allow no %u shards", 2 * best->shards);
    else if (2 * best->shards > home_cores(input))
        text_add(text, ", but %u shards are more than %.3g cores", 2 * best->shards, home_cores(input));
    else
        text_add(text, ", and more were not measured");
}

void plan_choose_shards(const struct plan_input *input, const struct plan_choice *choice, struct plan_broker *out)
{
    struct text text = {0};
    const struct plan_load *refused, *best = best_load(input, choice, &refused);
    *out = (struct plan_broker){.shards = input->fixed_shards ? input->fixed_shards : best ? best->shards : 1};
    if (input->fixed_shards) {
        explain_fixed(input, load_of(input, choice->actors, choice->learners, input->fixed_shards), &text);
    } else if (!best || !isfinite(best->core)) {
        text_add(&text, "it was not measured how busy the broker is");
    } else {
        if (best->shards > 1) {
            out->gain = gain(best, load_of(input, choice->actors, choice->learners, 1));
            text_add(&text, "%+.0f%% inserts/s against one; ", 100.0 * out->gain);
        }
        explain_end(input, best, refused, &text);
    }
    snprintf(out->reason, sizeof out->reason, "%s", text_get(&text));
    text_fini(&text);
}

/* Puts what is best with one shard in front of the alternatives. */
static void add_alone(struct plan *plan, const struct plan_choice *alone)
{
    uint32_t n = plan->n_others < PLAN_MAX_OTHERS ? plan->n_others : PLAN_MAX_OTHERS - 1;
    memmove(plan->others + 1, plan->others, n * sizeof *plan->others);
    plan->others[0] = *alone;
    plan->n_others = n + 1;
}

/* A side that waits while the core thread is busy waits for the broker, and not for the other side. */
static void name_broker(const struct plan_input *input, struct plan_choice *choice)
{
    bool side = choice->bottleneck != PLAN_CORES && choice->bottleneck != PLAN_MEMORY;
    if (side && plan_core_of(input, choice) >= FULL)
        choice->bottleneck = PLAN_BROKER;
}

static void take_run(struct plan *plan, const struct plan_model *model, const struct plan_load *load)
{
    const struct plan_input *input = model->input;
    struct plan_choice alone = plan->chosen, *chosen = &plan->chosen;
    bool best = plan->best.actors == alone.actors && plan->best.learners == alone.learners;
    bool same = load->joint.actors == alone.actors && load->joint.learners == alone.learners;
    plan_model_run(model, &load->joint, chosen);
    chosen->shards = load->shards;
    if (same)
        memcpy(chosen->reason, alone.reason, sizeof chosen->reason);
    else
        snprintf(chosen->reason, sizeof chosen->reason,
                 "%.0f%% more inserts/s than the best pair with one shard (%u actor%s, %u learner%s)",
                 100.0 * plan->broker.gain, alone.actors, alone.actors == 1 ? "" : "s", alone.learners,
                 alone.learners == 1 ? "" : "s");
    if (best)
        plan->best = *chosen;
    if (!same)
        add_alone(plan, &alone);
    for (uint32_t i = 0; i < plan->n_others; i++) {
        char *reason = plan->others[i].reason;
        size_t size = sizeof plan->others[i].reason, used = (size_t)snprintf(reason, size, "with one shard: ");
        plan_compare(input, &plan->others[i], chosen, reason + used, size - used);
    }
}

void plan_take_shards(struct plan *plan, const struct plan_model *model)
{
    const struct plan_input *input = model->input;
    const struct plan_load *load =
        plan->broker.shards > 1 && !input->fixed_shards ? fastest(input, plan->broker.shards) : NULL;
    if (load)
        take_run(plan, model, load);
    name_broker(input, &plan->chosen);
}
