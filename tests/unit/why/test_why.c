/* One sentence for each cause: which cause speaks, who is blocked, and which cause hides another. */
#include <time.h>

#include "agent/view/why.h"
#include "replay.pb-c.h"
#include "tests/support/test.h"

#define SECOND UINT64_C(1000000000)

/* A broker with one table in good order: a ratio, 5,000 items, both sides move. */
struct world {
    Replay__TableInfo table, *tables;
    Replay__LimiterInfo limiter;
    Replay__SlotInfo slot, *slots;
    Replay__ServerInfo server;
    Replay__InfoReply info;
    Replay__Wait list[4], *waiting[4];
    Replay__WhyReply waits;
    struct why_run run;
    struct why_facts facts;
};

static void world_init(struct world *self)
{
    *self = (struct world){
        .table = REPLAY__TABLE_INFO__INIT,
        .limiter = REPLAY__LIMITER_INFO__INIT,
        .slot = REPLAY__SLOT_INFO__INIT,
        .server = REPLAY__SERVER_INFO__INIT,
        .info = REPLAY__INFO_REPLY__INIT,
        .waits = REPLAY__WHY_REPLY__INIT,
        .run = {.actors = 2, .learners = 1, .actor_idle = 0.02, .learner_idle = 0.03, .cpu = 1.0, .cores = 4},
    };
    self->limiter.kind = "sample_to_insert_ratio";
    self->limiter.samples_per_insert = 8;
    self->limiter.min_size = 1000;
    self->table.name = "replay";
    self->table.limiter = &self->limiter;
    self->table.size = 5000;
    self->table.max_size = 100000;
    self->table.insert_rate = 100;
    self->table.sample_rate = 800;
    self->slot.name = "policy";
    self->slot.version = 7;
    self->server.session_count = 2;
    self->tables = &self->table;
    self->slots = &self->slot;
    self->info.tables = &self->tables;
    self->info.slots = &self->slots;
    self->info.n_tables = self->info.n_slots = 1;
    self->info.server = &self->server;
    self->waits.waits = self->waiting;
    self->facts =
        (struct why_facts){.info = (rp_info *)&self->info, .waits = (rp_info *)&self->waits, .run = &self->run};
}

FIXTURE(struct world, world_init, (void))

static void add_wait(struct world *self, char *kind, char *table, char *text, uint64_t ns)
{
    Replay__Wait *wait = self->waiting[self->waits.n_waits] = &self->list[self->waits.n_waits];
    self->waits.n_waits++;
    *wait = (Replay__Wait)REPLAY__WAIT__INIT;
    wait->who = "actor-0";
    wait->kind = kind;
    wait->table = table;
    wait->text = text;
    wait->count = 4;
    wait->waited_ns = ns;
}

static const struct why *explained(const struct world *self)
{
    static struct why why;
    why_explain(&self->facts, &why);
    return &why;
}

static void expect(const struct world *self, enum why_cause cause, enum why_side blocked, bool bad)
{
    const struct why *why = explained(self);
    if (why->cause != cause)
        print_message("%s: %s\n", why_cause_names[why->cause], why->text);
    assert_int_equal(why->cause, cause);
    assert_int_equal(why->blocked, blocked);
    assert_int_equal(why->bad, bad);
    assert_true(strlen(why->text) > 10);
    assert_int_equal(why->text[strlen(why->text) - 1], '.');
    assert_has_not(why->text, "..");
}

CASE(nobody_waits)
{
    expect(f, WHY_NOTHING, WHY_NOBODY, false);
    f->facts.run = NULL;
    f->facts.waits = NULL;
    expect(f, WHY_NOTHING, WHY_NOBODY, false);
    f->table.insert_rate = f->table.sample_rate = 0;
    expect(f, WHY_IDLE, WHY_NOBODY, false);
    f->info.n_tables = 0;
    expect(f, WHY_IDLE, WHY_NOBODY, false);
}

CASE(each_side)
{
    add_wait(f, "insert", "replay", "table 'replay': needs 8 more samples", SECOND / 100);
    expect(f, WHY_NOTHING, WHY_NOBODY, false); /* a short wait is how both sides keep pace */
    f->run.actor_idle = 0.9;
    expect(f, WHY_LEARNERS, WHY_SIDE_ACTORS, false);
    f->run.learner_idle = 0.6;
    assert_has(explained(f)->advice, "error_buffer"); /* one more learner would wait as well */
    add_wait(f, "sample", "replay", "needs 3 more inserts", SECOND / 100);
    f->run.learner_idle = 0.4;
    expect(f, WHY_LEARNERS, WHY_SIDE_ACTORS, false); /* actors wait more */
    f->run.learner_idle = 0.95;
    expect(f, WHY_ACTORS, WHY_SIDE_LEARNERS, false);
    assert_has(explained(f)->advice, "error_buffer"); /* both wait at one table: more actors would not help */
}

/* Without a run the length of the present wait decides. */
CASE(without_a_run)
{
    f->facts.run = NULL;
    add_wait(f, "sample", "replay", "needs 3 more inserts", SECOND / 10);
    expect(f, WHY_NOTHING, WHY_NOBODY, false);
    f->list[0].waited_ns = 3 * SECOND;
    expect(f, WHY_ACTORS, WHY_SIDE_LEARNERS, false);
    add_wait(f, "insert", "replay", "table 'replay': needs 8 more samples", 9 * SECOND);
    expect(f, WHY_LEARNERS, WHY_SIDE_ACTORS, false);
    f->limiter.batch = 4; /* lag: writers wait for the version that learners make of the last batch */
    assert_has_not(explained(f)->advice, "error_buffer");
}

CASE(a_client_that_does_not_read)
{
    f->facts.run = NULL;
    add_wait(f, "sample", "replay", "waits until its client has read earlier replies", 3 * SECOND);
    expect(f, WHY_UNREAD, WHY_SIDE_LEARNERS, true);
    add_wait(f, "sample", "replay", "needs 3 more inserts", 2 * SECOND);
    expect(f, WHY_ACTORS, WHY_SIDE_LEARNERS, false); /* learners do */
    assert_has(explained(f)->text, "1 sampler waits for inserts: needs 3");
}

/* Over shards samplers wait for permits, which they ask for again and again; a shard that is away is a cause of its own. */
CASE(shards)
{
    Replay__ShardInfo shards[3], *list[3];
    Replay__Shards all = REPLAY__SHARDS__INIT;
    for (uint32_t i = 0; i < 3; i++) {
        list[i] = &shards[i];
        shards[i] = (Replay__ShardInfo)REPLAY__SHARD_INFO__INIT;
        shards[i].shard = i;
    }
    all.shard = list;
    all.n_shard = 3;
    f->facts.run = NULL;
    f->info.shards = &all;
    expect(f, WHY_NOTHING, WHY_NOBODY, false);
    add_wait(f, "permit", "replay", "shard 0: needs 3 more inserts", SECOND / 100);
    add_wait(f, "permit", "replay", "shard 1: needs 2 more inserts", SECOND / 50);
    expect(f, WHY_ACTORS, WHY_SIDE_LEARNERS, false);
    assert_has(explained(f)->text, "1 sampler waits"); /* at two shards */
    assert_has(explained(f)->advice, "ratio");
    f->limiter.kind = "min_size";
    assert_has_not(explained(f)->advice, "ratio");
    shards[2].problem = "shard 2 at tcp://b:7600 does not answer for 3 s";
    expect(f, WHY_SHARD, WHY_NOBODY, true);
    shards[0].problem = "shard 0 at tcp://a:7600 does not answer for 2 s";
    expect(f, WHY_SHARD, WHY_SIDE_LEARNERS, true);
}

/* Both sides wait, and neither is the cause; somebody who looks at a broker alone is told another command. */
CASE(a_pause)
{
    add_wait(f, "insert", "replay", "the table is paused", 9 * SECOND);
    f->limiter.paused = true;
    expect(f, WHY_PAUSED, WHY_NOBODY, false);
    assert_has(explained(f)->advice, "replay-launch ask go");
    f->facts.run = NULL;
    assert_has(explained(f)->advice, "replay-ctl limiter replay go");
}

CASE(trouble)
{
    add_wait(f, "params", "policy", "nothing was published yet", 20 * SECOND);
    expect(f, WHY_NOTHING, WHY_NOBODY, false); /* somebody publishes: this is a poll for the next version */
    f->slot.version = 0;
    expect(f, WHY_PARAMETERS, WHY_SIDE_ACTORS, true);
    add_wait(f, "reduce", "learners", "1 of 2 members have added their vector", SECOND);
    expect(f, WHY_PARAMETERS, WHY_SIDE_ACTORS, true);
    f->list[1].waited_ns = 20 * SECOND;
    expect(f, WHY_REDUCE, WHY_SIDE_LEARNERS, true);
    add_wait(f, "journal", "", "/data: 12 messages to clients wait; the disk is full", 2 * SECOND);
    expect(f, WHY_DISK, WHY_SIDE_ACTORS, true);
    f->facts.info = NULL;
    expect(f, WHY_BROKER, WHY_NOBODY, true);
    f->facts.silence = "Connection refused";
    expect(f, WHY_BROKER, WHY_NOBODY, true);
}

CASE(too_few_items)
{
    f->table.size = 400;
    add_wait(f, "sample", "replay", "needs 600 more items (min_size 1000)", 8 * SECOND);
    expect(f, WHY_FILLING, WHY_SIDE_LEARNERS, false);
    assert_has(explained(f)->advice, "6 s"); /* 600 items at 100 a second */
    f->table.max_size = 500;
    expect(f, WHY_TOO_SMALL, WHY_SIDE_LEARNERS, true);
    f->table.max_size = 100000;
    f->table.evicted = 3;
    expect(f, WHY_TOO_SMALL, WHY_SIDE_LEARNERS, true);
    f->table.evicted = 0;
    f->table.insert_rate = 0;
    expect(f, WHY_FILLING, WHY_SIDE_LEARNERS, false); /* writers are there, and may be slow */
    f->server.session_count = 0;
    expect(f, WHY_TOO_SMALL, WHY_SIDE_LEARNERS, true);
}

CASE(machine)
{
    f->run.cpu = 3.9;
    expect(f, WHY_CORES, WHY_NOBODY, false);
    f->run.others = 1.5;
    expect(f, WHY_OTHERS, WHY_NOBODY, false);
    f->run.actor_idle = 0.5;
    add_wait(f, "insert", "replay", "table 'replay': needs memory: 9 MiB", SECOND);
    expect(f, WHY_MEMORY, WHY_SIDE_ACTORS, false);
    f->list[0].text = "table 'replay': needs 8 more samples";
    expect(f, WHY_LEARNERS, WHY_SIDE_ACTORS, false); /* the others take less than half of the processors */
    f->run.others = 2.5;
    expect(f, WHY_OTHERS, WHY_SIDE_ACTORS, false); /* the arrow is marked all the same */
}

CASE(network)
{
    add_wait(f, "network", "", "its data takes 200 ms to the broker", SECOND / 2);
    expect(f, WHY_NOTHING, WHY_NOBODY, false); /* that passes */
    f->list[0].waited_ns = 2 * SECOND;
    f->list[0].rate = 1.5e6;
    expect(f, WHY_NETWORK, WHY_SIDE_ACTORS, false);
    f->server.session_count = 3;
    expect(f, WHY_NOTHING, WHY_NOBODY, false); /* the others are near, and the learners have enough */
    add_wait(f, "sample", "replay", "table 'replay': needs 8 more inserts", SECOND / 2);
    expect(f, WHY_NETWORK, WHY_SIDE_ACTORS, false);
    add_wait(f, "network", "", "its data takes 300 ms to the broker", 2 * SECOND);
    f->list[2].rate = 0.5e6;
    assert_has(explained(f)->text, "which gets 1.9 MiB/s");
    f->list[2].rate = NAN;
    assert_has(explained(f)->text, "which gets 1.4 MiB/s");
    f->list[1].kind = "insert"; /* the table takes no more: that more data arrives would not help */
    f->run.actor_idle = 0.5;
    expect(f, WHY_LEARNERS, WHY_SIDE_ACTORS, false);
}

CASE(lost_hosts)
{
    f->run.stranded_actors = 1;
    f->run.lost = "cpu2: Connection refused";
    expect(f, WHY_NOTHING, WHY_NOBODY, false); /* nobody misses it */
    f->run.learner_idle = 0.5;
    add_wait(f, "sample", "replay", "table 'replay': needs 8 more inserts", SECOND);
    expect(f, WHY_HOSTS, WHY_SIDE_LEARNERS, false);
    f->run.stranded_actors = 0;
    expect(f, WHY_ACTORS, WHY_SIDE_LEARNERS, false);
    f->run.stranded_actors = 3;
    f->run.actors = 0;
    expect(f, WHY_HOSTS, WHY_SIDE_LEARNERS, true);
    f->waits.n_waits = f->run.stranded_actors = 0;
    f->run.stranded_learners = 1;
    expect(f, WHY_NOTHING, WHY_NOBODY, false);
    add_wait(f, "reduce", "learners", "1 of 2 learners has come", 6 * SECOND);
    expect(f, WHY_HOSTS, WHY_SIDE_ACTORS, false);
}

/* The verdict that a launcher has written, as others read it. */
TEST(status)
{
    struct why why;
    const struct {
        long long age_s;
        const char *cause, *waits;
        bool good;
    } rows[] = {{60, "hosts", "A host is lost.", false}, /* its launcher does not work */
                {0, "moon", "Full moon.", false},
                {0, "hosts", "", false},
                {0, "hosts", "A host is lost.", true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(
            why_read_status(textf("{\"unix_s\": %lld, \"cause\": \"%s\", \"waits\": \"%s\", \"advice\": \"Wait.\", "
                                  "\"blocked\": \"actors\", \"blocked_table\": \"replay\", \"bad\": true}",
                                  (long long)time(NULL) - rows[i].age_s, rows[i].cause, rows[i].waits),
                            &why),
            rows[i].good);
    assert_true(why.cause == WHY_HOSTS && why.blocked == WHY_SIDE_ACTORS && why.bad);
    assert_string_equal(why.text, "A host is lost.");
    assert_string_equal(why.advice, "Wait.");
    assert_string_equal(why.table, "replay");
    static const char *const wrong[] = {"", "[]", "{}", "{\"cause\": 5, \"unix_s\": \"now\", \"waits\": {}}",
                                        "{\"cause\""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(why_read_status(wrong[i], &why));
    assert_false(why_read_status(NULL, &why));
}
