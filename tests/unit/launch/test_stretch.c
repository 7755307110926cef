/* What was achieved between two changes of the number of actors, from counts as a broker shows them. */

#include "agent/launch/run_state.h"
#include "tests/support/clock_manual.h"
#include "tests/support/test.h"

static struct run run;
static struct run_config config;
static struct run_options options;
static struct clock_manual hand;

static void begin(void)
{
    hand.now_ns = NS_PER_S;
    config = (struct run_config){.report.every_ns = NS_PER_S};
    run = (struct run){.options = &options,
                       .config = &config,
                       .clock = clock_manual(&hand),
                       .phase = PHASE_RUNNING,
                       .seen = {.broker_instance = 1, .at_ns = NS_PER_S}};
    run_stretch_begin(&run, 2);
}

/* A second later. */
static void look(uint64_t inserts, uint64_t samples)
{
    const struct observation before = run.seen;
    hand.now_ns += NS_PER_S;
    run.seen = (struct observation){.broker_instance = before.broker_instance,
                                    .at_ns = hand.now_ns,
                                    .inserts = inserts,
                                    .samples = samples,
                                    .actor_idle = 0.25,
                                    .learner_idle = NAN};
    run_stretch_add(&run, &before);
}

static void expect_rates(double inserts, double samples)
{
    static struct report_stretch stretches[REPORT_STRETCHES];
    assert_int_equal(run_stretches(&run, stretches), 1);
    assert_int_equal(stretches[0].actors, 2);
    assert_true(stretches[0].settled);
    assert_true(fabs(stretches[0].achieved.inserts - inserts) < 1e-9);
    assert_true(fabs(stretches[0].achieved.samples - samples) < 1e-9);
    assert_true(fabs(stretches[0].achieved.actor_idle - 0.25) < 1e-9);
}

/* 'replay-ctl reset' lets the counts of a table begin at zero, at the same broker. */
TEST(rates)
{
    begin();
    for (uint64_t i = 1; i <= 10; i++)
        look(100 * i, 800 * i);
    look(30, 200);
    for (uint64_t i = 1; i <= 10; i++)
        look(30 + 100 * i, 200 + 800 * i);
    expect_rates(100, 800);
}
