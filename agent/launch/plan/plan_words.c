/* Explains in words why this pair was chosen and the others were not. */
#include <math.h>
#include <string.h>

#include "agent/launch/plan/plan_impl.h"
#include "proto/base/format.h"

#define SPOILED 0.1 /* share of the cores */

/* ---- parts of sentences ---- */

const char *plan_bytes(char *out, double bytes)
{
    return format_bytes(out, bytes > 0 ? (uint64_t)fmin(bytes, 1e18) : 0);
}

static bool same_pair(const struct plan_choice *a, const struct plan_choice *b)
{
    return a->actors == b->actors && a->learners == b->learners;
}

/* "2 more processes", "1 process fewer"; "" if the number is the same. */
static void add_processes(struct text *text, const char *before, const struct plan_choice *a,
                          const struct plan_choice *b)
{
    int64_t more = (int64_t)a->actors + a->learners - (int64_t)b->actors - b->learners;
    if (more > 0)
        text_add(text, "%s%lld more process%s", before, (long long)more, more == 1 ? "" : "es");
    else if (more < 0)
        text_add(text, "%s%lld process%s fewer", before, (long long)-more, more == -1 ? "" : "es");
}

/* Cores that the pair would use if there were more. */
static double cores_needed(const struct plan_input *input, const struct plan_choice *choice)
{
    struct plan_model model;
    struct plan_side a, l;
    plan_model_init(&model, input);
    plan_side_at(&model, PLAN_OF_ACTORS, choice->actors, &a);
    plan_side_at(&model, PLAN_OF_LEARNERS, choice->learners, &l);
    double need = a.rate * a.all + l.rate * l.all;
    if (input->spi > 0)
        need = plan_model_cores(&model, &a, &l, fmin(a.rate, l.rate / input->spi));
    plan_model_fini(&model);
    return need;
}

/* Which side waits, and for what: the cause of a lower rate. */
static void add_waits(struct text *text, const struct plan_input *input, const struct plan_choice *choice)
{
    double need = cores_needed(input, choice);
    if (choice->bottleneck == PLAN_NETWORK)
        text_add(text, ": the network is full");
    else if (choice->bottleneck == PLAN_CORES && input->n_hosts > 1)
        text_add(text, ": the cores of a host are all busy");
    else if (choice->bottleneck == PLAN_CORES && need > input->cores * (1 + PLAN_SAME))
        text_add(text, ": would need %.3g cores of %.3g", need, input->cores);
    else if (choice->bottleneck == PLAN_CORES)
        text_add(text, ": all %.3g cores are busy", input->cores);
    else if (choice->learner_idle > choice->actor_idle && choice->learner_idle > PLAN_SAME)
        text_add(text, ": learners would wait %.0f%% of the time", 100 * choice->learner_idle);
    else if (choice->actor_idle > PLAN_SAME)
        text_add(text, ": actors would wait %.0f%% of the time", 100 * choice->actor_idle);
}

static void keep(struct text *text, char *out, size_t size)
{
    snprintf(out, size, "%s", text_get(text));
    text_fini(text);
}

/* "would need 3 GiB of 2 GiB on cpu1". */
static void add_memory(struct text *text, const char *verb, const struct plan_input *input,
                       const struct plan_choice *choice)
{
    format_buffer need, have;
    const char *where;
    double needs, has = plan_budget(input, choice, &needs, &where);
    text_add(text, "%s %s of %s%s%s", verb, plan_bytes(need, needs), plan_bytes(have, has), where[0] ? " on " : "",
             where);
}

/* ---- a pair against another ---- */

void plan_compare(const struct plan_input *input, const struct plan_choice *a, const struct plan_choice *b, char *out,
                  size_t size)
{
    struct text text = {0};
    double gain = b->inserts > 0 ? a->inserts / b->inserts - 1 : 0;
    if (!plan_fits(input, a)) {
        add_memory(&text, "would need", input, a);
        if (gain > PLAN_SAME)
            text_add(&text, ", for %.0f%% more inserts/s", 100 * gain);
    } else if (gain < -PLAN_SAME) {
        text_add(&text, "%.0f%% fewer inserts/s", -100 * gain);
        add_waits(&text, input, a);
    } else {
        if (gain > PLAN_SAME)
            text_add(&text, "%.0f%% more inserts/s", 100 * gain);
        else
            text_add(&text, "same inserts/s");
        add_processes(&text, " with ", a, b);
        add_waits(&text, input, a);
    }
    keep(&text, out, size);
}

/* ---- the chosen one ---- */

static void add_pair(struct text *text, const struct plan_choice *choice)
{
    text_add(text, "%u actor%s, %u learner%s", choice->actors, choice->actors == 1 ? "" : "s", choice->learners,
             choice->learners == 1 ? "" : "s");
}

/* Home, and the hosts that take processes. */
static uint32_t machines(const struct plan_input *input)
{
    uint32_t n = 1;
    for (uint32_t i = 1; i < input->n_hosts; i++)
        n += input->hosts[i].actors || input->hosts[i].learners;
    return n;
}

static void add_budget(struct text *text, const struct plan_input *input)
{
    text_add(text, " within %.3g core%s", input->cores, input->cores == 1 ? "" : "s");
    if (input->n_hosts > 1)
        text_add(text, " of %u machines", machines(input));
    else if (input->memory > 0) {
        format_buffer have;
        text_add(text, " and %s", plan_bytes(have, input->memory));
    }
}

static void explain_search(struct text *text, const struct plan_input *input, const struct plan_choice *choice,
                           const struct plan_choice *top)
{
    double loss = top->inserts > 0 ? 1 - choice->inserts / top->inserts : 0;
    if (same_pair(choice, top) || loss < PLAN_SAME / 10) {
        text_add(text, "the highest rate");
        add_budget(text, input);
        add_processes(text, " with ", choice, top);
        return;
    }
    text_add(text, "%.1f%% below the highest rate (", 100 * loss);
    add_pair(text, top);
    text_add(text, ")");
    add_processes(text, ", with ", choice, top);
}

static void explain_fixed(struct text *text, const struct plan_input *input)
{
    if (input->fixed_actors && input->fixed_learners)
        text_add(text, "; actors.count and learners.count are numbers in the file");
    else if (input->fixed_actors || input->fixed_learners)
        text_add(text, "; %s.count is a number in the file", input->fixed_actors ? "actors" : "learners");
    uint32_t actors = plan_most(input, PLAN_OF_ACTORS), learners = plan_most(input, PLAN_OF_LEARNERS);
    if (input->fixed_actors > actors)
        text_add(text, "; measured were %u actors at most: rates are theirs", actors);
    if (input->fixed_learners > learners)
        text_add(text, "; measured were %u learners at most: rates are theirs", learners);
}

static void explain_chosen(const struct plan_input *input, struct plan_choice *choice, const struct plan_choice *top)
{
    struct text text = {0};
    if (!plan_fits(input, choice)) {
        add_memory(&text, "needs", input, choice);
    } else if (input->fixed_actors && input->fixed_learners) {
        text_add(&text, "as the file says");
    } else {
        explain_search(&text, input, choice, top);
    }
    explain_fixed(&text, input);
    keep(&text, choice->reason, sizeof choice->reason);
}

/* ---- the others ---- */

static void add_other(struct plan *plan, const struct plan_input *input, const struct plan_choice *choice)
{
    if (plan->n_others == PLAN_MAX_OTHERS || same_pair(choice, &plan->chosen))
        return;
    for (uint32_t i = 0; i < plan->n_others; i++)
        if (same_pair(choice, &plan->others[i]))
            return;
    struct plan_choice *other = &plan->others[plan->n_others++];
    *other = *choice;
    plan_compare(input, other, &plan->chosen, other->reason, sizeof other->reason);
}

/* With many processes, one more or less is no alternative worth showing. */
static int64_t step_of(uint32_t count)
{
    return count < 16 ? 1 : count / 8;
}

/* True if other programs took so much more from this run than from the chosen pair's run that the two cannot be
 * compared. */
static bool is_spoiled(const struct plan *plan, const struct plan_input *input, const struct plan_joint *joint)
{
    const struct plan_joint *chosen = plan_joint_of(input, plan->chosen.actors, plan->chosen.learners);
    return chosen && plan_known(joint->others) > plan_known(chosen->others) + SPOILED * input->cores;
}

static void add_neighbour(struct plan *plan, const struct plan_model *model, int64_t actors, int64_t learners)
{
    int64_t x = (int64_t)plan->chosen.actors + actors, y = (int64_t)plan->chosen.learners + learners;
    if (x < 1 || y < 1 || x > plan_most(model->input, PLAN_OF_ACTORS) || y > plan_most(model->input, PLAN_OF_LEARNERS))
        return;
    /* If pairs were run jointly, the alternatives shown are runs. */
    const struct plan_joint *joint = plan_joint_of(model->input, (uint32_t)x, (uint32_t)y);
    if (model->input->n_joints && (!joint || is_spoiled(plan, model->input, joint)))
        return;
    struct plan_choice choice;
    plan_model_counts(model, (uint32_t)x, (uint32_t)y, &choice);
    add_other(plan, model->input, &choice);
}

/* Finds the best joint run that is not among the alternatives yet; false: there is none. */
static bool add_best_joint(struct plan *plan, const struct plan_model *model)
{
    const struct plan_input *input = model->input;
    const struct plan_joint *best = NULL;
    for (uint32_t i = 0; i < input->n_joints; i++) {
        const struct plan_joint *joint = &input->joints[i];
        bool told = is_spoiled(plan, input, joint) ||
                    (joint->actors == plan->chosen.actors && joint->learners == plan->chosen.learners);
        for (uint32_t k = 0; k < plan->n_others; k++)
            told |= joint->actors == plan->others[k].actors && joint->learners == plan->others[k].learners;
        if (!told && (!best || joint->inserts > best->inserts))
            best = joint;
    }
    if (!best || plan->n_others == PLAN_MAX_OTHERS)
        return false;
    struct plan_choice choice;
    plan_model_counts(model, best->actors, best->learners, &choice);
    add_other(plan, input, &choice);
    return true;
}

void plan_explain(struct plan *plan, const struct plan_model *model, const struct plan_choice *top,
                  const struct plan_choice *unfit)
{
    const struct plan_input *input = model->input;
    explain_chosen(input, &plan->chosen, top);
    if (same_pair(&plan->best, &plan->chosen))
        memcpy(plan->best.reason, plan->chosen.reason, sizeof plan->best.reason);
    else
        plan_compare(input, &plan->best, &plan->chosen, plan->best.reason, sizeof plan->best.reason);
    if (top->inserts > plan->chosen.inserts * (1 + PLAN_SAME))
        add_other(plan, input, top);
    if (unfit)
        add_other(plan, input, unfit);
    int64_t actors = step_of(plan->chosen.actors), learners = step_of(plan->chosen.learners);
    add_neighbour(plan, model, +actors, 0);
    add_neighbour(plan, model, -actors, 0);
    add_neighbour(plan, model, 0, +learners);
    add_neighbour(plan, model, 0, -learners);
    while (add_best_joint(plan, model))
        ;
}
