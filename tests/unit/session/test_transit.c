/* When a writer is held back by the network: what its heartbeats must say, and what speaks against it. */

#include "broker/config/config.h"
#include "broker/loop/loop.h"
#include "broker/session/session.h"
#include "proto/base/clock.h"
#include "tests/support/test.h"

struct world {
    struct broker_config config;
    struct loop loop;
    struct sessions sessions;
    struct flow flow;
    struct session session;
    struct transit_report report;
};

static void world_init(struct world *self)
{
    memset(self, 0, sizeof *self);
    self->config.expiry_ns = CONFIG_HEARTBEATS * NS_PER_S;
    self->loop.now_ns = 100 * NS_PER_S;
    self->sessions = (struct sessions){.loop = &self->loop, .config = &self->config, .ingest_idle = true};
    self->session = (struct session){.sessions = &self->sessions, .remote = true, .flows = &self->flow, .n_tables = 1};
    self->report.flight_ns = 200 * NS_PER_MS;
    transit_measure(&self->session, &self->report);
}

/* A heartbeat, a second after the last one, of a writer that has waited for 80% of it. */
static void beat(struct world *self)
{
    self->loop.now_ns += NS_PER_S;
    self->report.waited_ns += 800 * NS_PER_MS;
    self->session.received_bytes += 3000000;
    transit_measure(&self->session, &self->report);
}

TEST(holds)
{
    struct world world;
    char text[256];
    world_init(&world);
    assert_false(transit_holds(&world.session)); /* nothing to compare with yet */
    world.report.sent = 7;
    beat(&world);
    assert_true(transit_holds(&world.session));
    assert_true(world.session.transit.since_ns == 100 * NS_PER_S && world.session.transit.messages == 7);
    assert_true(world.session.transit.rate > 2.99e6 && world.session.transit.rate < 3.01e6);
    assert_true(world.session.transit.share > 0.79 && world.session.transit.share < 0.81);
    transit_explain(&world.session, text, sizeof text);
    assert_non_null(strstr(text, "200 ms"));
    assert_non_null(strstr(text, "80%"));
    world.loop.now_ns += NS_PER_MS; /* a heartbeat right after: too early to measure */
    world.report.waited_ns = 0;
    transit_measure(&world.session, &world.report);
    assert_true(transit_holds(&world.session));
    world.loop.now_ns += 4 * NS_PER_S; /* the writer says nothing any more */
    assert_false(transit_holds(&world.session));
}

TEST(one_miss_does_not_end_it)
{
    struct world world;
    world_init(&world);
    beat(&world);
    world.sessions.ingest_idle = false;
    beat(&world);
    assert_true(transit_holds(&world.session));
    beat(&world);
    assert_false(transit_holds(&world.session));
    world.sessions.ingest_idle = true;
    beat(&world);
    assert_true(transit_holds(&world.session));
}

/* Each of these explains the wait better. */
TEST(other_reasons)
{
    struct world world;
    world_init(&world);
    world.session.remote = false;
    beat(&world);
    assert_false(transit_holds(&world.session));
    world.session.remote = true;
    world.flow.count = 3; /* its items wait for their table */
    beat(&world);
    assert_false(transit_holds(&world.session));
    world.flow.count = 0;
    world.report.flight_ns = NS_PER_MS; /* a message takes no time */
    beat(&world);
    assert_false(transit_holds(&world.session));
    world.report.flight_ns = 200 * NS_PER_MS;
    world.sessions.ingest_held = true; /* the broker waits for its disk, and reads nothing */
    beat(&world);
    assert_false(transit_holds(&world.session));
    world.sessions.ingest_held = false;
    world.report.waited_ns -= 700 * NS_PER_MS; /* it waits for 10% only */
    beat(&world);
    assert_false(transit_holds(&world.session));
    world.report.waited_ns = 0; /* numbers that cannot be */
    beat(&world);
    assert_false(transit_holds(&world.session));
    world.report.waited_ns = UINT64_MAX - 800 * NS_PER_MS;
    world.report.flight_ns = UINT64_MAX;
    beat(&world);
    assert_true(transit_holds(&world.session) && world.session.transit.share == 1.0);
    world.session.tombstone = true;
    assert_false(transit_holds(&world.session));
}
