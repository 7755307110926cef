#include "tests/support/curves.h"

struct plan_unit unit_of(double rate, double cpu, double broker_cpu, double memory)
{
    return (struct plan_unit){rate, cpu, broker_cpu, memory};
}

struct plan_input curves_input(struct plan_unit actor, struct plan_unit learner, double spi)
{
    static struct plan_host homes[16];
    static unsigned next;
    struct plan_host *home = &homes[next++ % 16];
    *home = (struct plan_host){
        .name = "home", .cores = 2, .memory = 4 * GIB, .actors = true, .learners = true, .actor = actor};
    return (struct plan_input){.hosts = home,
                               .n_hosts = 1,
                               .learner = learner,
                               .spi = spi,
                               .max_actors = 64,
                               .max_learners = 4,
                               .broker_memory = 100 * MIB,
                               .other_memory = 20 * MIB};
}

struct plan_pair run_of(uint32_t actors, uint32_t learners, double inserts, double samples, double actor_idle,
                        double learner_idle, double cpu)
{
    return (struct plan_pair){.actors = actors,
                              .learners = learners,
                              .shards = 1,
                              .inserts = inserts,
                              .samples = samples,
                              .waits.actor[IDLE_CREDIT] = actor_idle,
                              .waits.learner[IDLE_SAMPLE] = learner_idle,
                              .cpu = cpu,
                              .runs = 1};
}

struct plan curves_solve(const struct plan_input *input)
{
    struct plan plan;
    if (plan_solve(input, &plan, &err) != RP_OK)
        fail_msg("no plan: %s", err.text);
    return plan;
}
