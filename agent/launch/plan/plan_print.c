/* A plan for people. */
#include <math.h>
#include <string.h>

#include "agent/launch/plan/plan_impl.h"
#include "proto/base/format.h"

static const char *plural(uint32_t count)
{
    return count == 1 ? "" : "s";
}

/* "1,234", "12.3", "0.45": a rate keeps three digits. */
static const char *rate(char *out, double value)
{
    if (value >= 100 && value < 1e18)
        return format_count(out, (uint64_t)(value + 0.5));
    snprintf(out, FORMAT_SIZE, "%.3g", value);
    return out;
}

static void print_samples(const struct plan_choice *choice, const struct plan_input *input, FILE *out)
{
    format_buffer text;
    fprintf(out, "  samples     %s/s", rate(text, choice->samples));
    if (input->spi > 0)
        fprintf(out, ", %.4g per insert", input->spi);
    fputc('\n', out);
}

static void print_bottleneck(const struct plan_choice *choice, const struct plan_input *input, FILE *out)
{
    const char *actors = choice->actors == 1 ? "actor" : "actors";
    const char *learners = choice->learners == 1 ? "learner" : "learners";
    fprintf(out, "  bottleneck: ");
    switch (choice->bottleneck) {
    case PLAN_ACTORS:
        fprintf(out, "the %s (a learner more would change nothing)\n", actors);
        return;
    case PLAN_LEARNERS:
        fprintf(out, "the %s (an actor more would change nothing)\n", learners);
        return;
    case PLAN_CORES:
        if (input->n_hosts > 1)
            plan_print_full(choice, input, out);
        else
            fprintf(out, "the cores (all %.3g are busy; more processes would change nothing)\n", input->cores);
        return;
    case PLAN_MEMORY:
        fprintf(out, "memory (more processes would give more, and do not fit)\n");
        return;
    case PLAN_BALANCED:
        fprintf(out, "none (actors and learners are in balance)\n");
        return;
    case PLAN_MAX_ACTORS:
        fprintf(out, "the %s: plan.max_actors allows %u (a larger bound lets the plan try more)\n", actors,
                input->max_actors);
        return;
    case PLAN_MAX_LEARNERS:
        fprintf(out, "the %s: plan.max_learners allows %u (a larger bound lets the plan try more)\n", learners,
                input->max_learners);
        return;
    case PLAN_NETWORK:
        fprintf(out, "the network (%.3g MB/s reach the broker's machine; more actors would change nothing)\n",
                input->network * 1e-6);
        return;
    case PLAN_BROKER:
        fprintf(out,
                "the broker (the busiest core thread works %.0f%% of the time; more processes would change nothing)\n",
                100 * plan_core_of(input, choice));
        return;
    }
}

/* "actors 13% (credit 12%, counters 1%), learners 5% (sample 5%) of the time". */
static void print_waits(const struct plan_choice *choice, const struct plan_input *input, FILE *out)
{
    struct idle_shares waits = plan_waits(choice, input);
    char actors[128], learners[128];
    idle_words(waits.actor, actors, sizeof actors);
    idle_words(waits.learner, learners, sizeof learners);
    fprintf(out, "  waiting     actors %.0f%%%s%s%s, learners %.0f%%%s%s%s of the time\n",
            100 * plan_actor_idle(choice, input), actors[0] ? " (" : "", actors, actors[0] ? ")" : "",
            100 * plan_learner_idle(choice, input), learners[0] ? " (" : "", learners, learners[0] ? ")" : "");
}

static void print_choice(const struct plan_choice *choice, const struct plan_broker *broker,
                         const struct plan_input *input, FILE *out)
{
    format_buffer text, have;
    fprintf(out, "plan: %u actor%s, %u learner%s%s\n", choice->actors, plural(choice->actors), choice->learners,
            plural(choice->learners), choice->measured ? " (measured together)" : "");
    fprintf(out, "  inserts     %s/s\n", rate(text, choice->inserts));
    print_samples(choice, input, out);
    print_waits(choice, input, out);
    print_bottleneck(choice, input, out);
    fprintf(out, "  processor   %.*g of %.*g core%s\n", choice->cpu < 100 ? 2 : 4, choice->cpu,
            input->cores < 1000 ? 3 : 6, input->cores, input->cores == 1 ? "" : "s");
    fprintf(out, "  memory      %s", plan_bytes(text, choice->memory));
    if (input->memory > 0)
        fprintf(out, " of %s", plan_bytes(have, input->memory));
    fprintf(out, "\n  because     %s\n", choice->reason);
    if (broker->shards > 0)
        fprintf(out, "  shards      %u: %s\n", broker->shards, broker->reason);
    const struct plan_joint *joint = plan_run_of(input, choice);
    if (joint && joint->others > 0)
        fprintf(out,
                "  disturbed   other programs took %.2g of %.3g cores while this was measured: plan again (--again) "
                "when they are done\n",
                joint->others, input->n_hosts > 1 ? input->hosts[0].cores : input->cores);
}

static void print_others(const struct plan *self, FILE *out)
{
    static const char *const titles[] = {">actors",    ">learners", ">inserts/s",
                                         ">samples/s", "from",      "compared with the plan"};
    if (self->n_others == 0)
        return;
    struct grid grid;
    grid_init(&grid, titles, 6);
    for (uint32_t i = 0; i < self->n_others; i++) {
        const struct plan_choice *other = &self->others[i];
        format_buffer inserts, samples;
        grid_addf(&grid, "%u", other->actors);
        grid_addf(&grid, "%u", other->learners);
        grid_add(&grid, rate(inserts, other->inserts));
        grid_add(&grid, rate(samples, other->samples));
        grid_add(&grid, other->measured ? "a run" : "curves");
        grid_add(&grid, other->reason);
    }
    fprintf(out, "alternatives:\n");
    grid_print(&grid, out);
    grid_fini(&grid);
}

/* "actors.count says 8; 5 would do: ...". */
static void print_number(const char *key, uint32_t says, uint32_t best, const char *why, FILE *out)
{
    if (says == 0)
        return;
    if (says == best)
        fprintf(out, "%s says %u, as auto would\n", key, says);
    else if (best < says)
        fprintf(out, "%s says %u; %u would do: %s\n", key, says, best, why);
    else
        fprintf(out, "%s says %u; auto would take %u: %s\n", key, says, best, why);
}

void plan_print(const struct plan *self, const struct plan_input *input, FILE *out)
{
    print_choice(&self->chosen, &self->broker, input, out);
    if (input->n_hosts > 1)
        plan_print_where(&self->chosen, input, out);
    print_number("actors.count", input->fixed_actors, self->best.actors, self->best.reason, out);
    print_number("learners.count", input->fixed_learners, self->best.learners, self->best.reason, out);
    print_others(self, out);
}
