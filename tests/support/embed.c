#include "tests/support/embed.h"

#include "broker/journal/stream.h"
#include "broker/sample/kept_samples.h"
#include "broker/spill/spill.h"
#include "tests/support/testpeer.h"

bool embed_read_config(const char *yaml, struct broker_config *config, char *problems, size_t size)
{
    struct schema_report *report = schema_report_new();
    *config = (struct broker_config){0};
    bool ok = schema_read_text(&broker_schema, "test.yaml", yaml, config, report);
    snprintf(problems, size, "%s", schema_report_text(report));
    schema_report_destroy(&report);
    return ok;
}

struct broker_config embed_config;

const char *embed_problems(const char *yaml)
{
    static char problems[4000];
    schema_free(&broker_schema, &embed_config);
    bool good = embed_read_config(yaml, &embed_config, problems, sizeof problems);
    assert_int_equal(good, problems[0] == '\0');
    return problems;
}

static void start(struct embed *self, const char *tables, const char *more)
{
    char yaml[8192], problems[2048];
    log_set_level(getenv("RP_TEST_LOG") ? LEVEL_DEBUG : LEVEL_OFF);
    static const char inproc[] = "service: inproc://service\ningest: inproc://ingest\nevents: inproc://events\n";
    self->remote = more && strstr(more, "service:");
    int size = snprintf(yaml, sizeof yaml, "%s%s%s\ntables:\n%s\n", self->remote ? "" : inproc,
                        more && strstr(more, "seed:") ? "" : "seed: 7\n", more ? more : "", tables);
    assert_true(size > 0 && (size_t)size < sizeof yaml);
    if (!embed_read_config(yaml, &self->config, problems, sizeof problems))
        fail_msg("%s", problems);
    self->manual.now_ns = 1000 * NS_PER_S;
    self->context = zmq_ctx_new();
    zmq_ctx_set(self->context, ZMQ_MAX_SOCKETS, 20000);
    ok(config_become_shard(&self->config, &err));
    self->broker =
        broker_new(&self->config, self->real_time ? clock_system() : clock_manual(&self->manual), self->context, &err);
    if (!self->broker)
        fail_msg("%s", err.text);
}

void embed_rebind(struct embed *self)
{
    struct peers *peers = &self->broker->peers;
    void *const sockets[] = {peers->service, peers->ingest, peers->events};
    char bound[3][ENDPOINT_BYTES];
    int linger = 0;
    const struct broker_config before = self->config;
    for (uint32_t i = 0; i < 3; i++)
        zmq_setsockopt(sockets[i], ZMQ_LINGER, &linger, sizeof linger);
    memcpy(bound[0], peers->service_endpoint, sizeof bound[0]);
    memcpy(bound[1], peers->ingest_endpoint, sizeof bound[1]);
    memcpy(bound[2], peers->events_endpoint, sizeof bound[2]);
    self->config.service = bound[0];
    self->config.ingest = bound[1];
    self->config.events = bound[2];
    rp_status status = RP_IO;
    for (int tries = 0; status != RP_OK && tries < WAIT; tries++) { /* an I/O thread closes the listeners */
        sockets_close(peers);
        status = sockets_open(peers, self->context, &err);
        if (status != RP_OK)
            usleep(1000);
    }
    self->config.service = before.service;
    self->config.ingest = before.ingest;
    self->config.events = before.events;
    if (status != RP_OK)
        fail_msg("%s", err.text);
    self->lossy = true;
}

void embed_start(struct embed *self, const char *tables, const char *more)
{
    *self = (struct embed){0};
    start(self, tables, more);
}

void embed_start_real(struct embed *self, const char *tables, const char *more)
{
    *self = (struct embed){.real_time = true};
    start(self, tables, more);
}

/* Returns true while the disk is being written. If it cannot be written, the broker has nothing to do without more input. */
static bool is_being_written(const struct broker *broker)
{
    const struct stream *stream = broker->stream;
    if (!stream || stream->trouble[0])
        return false;
    /* Without a journal, a segment's first entries are kept back until there is a chunk. */
    bool kept_back = !stream->journal && stream->out.used == stream->start_used;
    return !STAILQ_EMPTY(&broker->peers.commit.parked) ||
           stream->durable < (kept_back ? stream->number - 1 : stream_now(stream));
}

static void turn_until_quiet(struct embed *self)
{
    struct broker *broker = self->broker;
    uint32_t quiet = 0;
    for (uint32_t turns = 0; quiet < 2; turns++) {
        uint64_t before = broker->peers.counters.messages_in;
        bool disk = (broker->spill && !spill_is_quiet(broker->spill)) || is_being_written(broker);
        broker_turn(broker, disk ? 1 : 0);
        bool busy = disk || broker->peers.counters.messages_in != before || broker->tables.dirty ||
                    broker->loop.chores.first || timers_next(&broker->loop.timers) <= broker->loop.now_ns ||
                    is_being_written(broker);
        quiet = busy ? 0 : quiet + 1;
        if (turns > 10000000)
            fail_msg("the broker does not come to rest");
    }
}

/* A message over inproc arrives at once, unless libzmq's own thread, which closes sockets, is about to wake the broker's socket:
 * then it arrives when that thread runs again. The wait is short where messages may be lost. */
void embed_settle(struct embed *self)
{
    turn_until_quiet(self);
    uint64_t *in = &self->broker->peers.counters.messages_in;
    uint32_t most = self->lossy ? 200 : WAIT;
    for (uint32_t ms = 0; *in - self->seen < self->due && ms < most; ms++) {
        zmq_poll(NULL, 0, 1);
        turn_until_quiet(self);
    }
    self->seen = *in;
    self->due = 0;
}

void embed_advance(struct embed *self, int64_t ms)
{
    embed_settle(self);
    self->manual.now_ns += ms * NS_PER_MS;
    embed_settle(self);
}

struct table *embed_table(struct embed *self, const char *name)
{
    struct table *table = tables_find(&self->broker->tables, name, strlen(name));
    if (!table)
        fail_msg("no table '%s'", name);
    return table;
}

/* Empties the tables by a reset and closes the sessions; after that no reference to a chunk may be left. */
static void check_released(struct embed *self)
{
    struct broker *broker = self->broker;
    waits_cancel_all(&broker->peers.waits, RP_CANCELLED, "the test ends");
    while (!LIST_EMPTY(&broker->sessions.list))
        session_close(LIST_FIRST(&broker->sessions.list));
    for (uint32_t i = 0; i < broker->tables.n; i++)
        assert_int_equal(table_reset(&broker->tables.list[i], NULL), RP_OK);
    embed_settle(self);
    kept_samples_fini(&broker->samples.kept); /* after its chore */
    leases_fini(&broker->samples.leases);
    assert_int_equal(broker->store.chunks, 0);
    assert_int_equal(broker->store.bytes, 0);
    assert_int_equal(store_chunk_memory(&broker->store), 0);
    assert_int_equal(broker->sessions.granted_bytes, 0);
    assert_int_equal(broker->sessions.n_writing, 0);
    uint64_t overhead = broker->peers.kept_replies.list.bytes;
    for (uint32_t i = 0; i < broker->tables.n; i++) {
        assert_int_equal(broker->tables.list[i].bytes, 0);
        overhead += contents_memory(&broker->tables.list[i].in);
    }
    assert_int_equal(broker->store.overhead, overhead);
    for (uint32_t i = 0; i < broker->layouts.count; i++)
        assert_null(broker->layouts.list[i]);
}

void embed_stop(struct embed *self)
{
    check_released(self);
    while (self->peers)
        testpeer_close(self->peers);
    broker_destroy(&self->broker);
    zmq_ctx_term(self->context);
    schema_free(&broker_schema, &self->config);
}

int embed_setup(void **state)
{
    const struct embed_options *options = *state;
    struct embed *self = malloc(sizeof *self);
    assert_non_null(self);
    embed_start(self, options->tables, options->more);
    *state = self;
    return 0;
}

int embed_teardown(void **state)
{
    embed_stop(*state);
    free(*state);
    return 0;
}
