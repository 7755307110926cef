/* Every allocation of the broker fails once, and from each on all of them do: whoever asked gets an error, nobody
 * crashes, nothing leaks, and after a retry everything is as if nothing had failed. */

#include "broker/spill/spill.h"
#include "tests/support/nomem_peer.h"

/* ---- a broker with a writer and a learner ---- */

static const char tables[] =
    "  - {name: plain, max_size: 200, sampler: {kind: fifo}, remover: {kind: fifo}, limiter: {kind: none}}\n"
    "  - {name: other, max_size: 200, sampler: {kind: fifo}, remover: {kind: fifo}, limiter: {kind: none}}\n"
    "  - {name: queue, max_size: 3, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: queue}}\n"
    "  - {name: prio, max_size: 200, sampler: {kind: prioritized}, remover: {kind: uniform}, limiter: {kind: none},\n"
    "     extensions: [{kind: statistics}]}\n"
    "  - {name: copied, max_size: 200, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: none},\n"
    "     extensions: [{kind: insert_on_sample, table: copies}]}\n"
    "  - {name: copies, max_size: 200, sampler: {kind: fifo}, remover: {kind: fifo}, limiter: {kind: none}}\n";

struct run {
    struct embed embed;
    struct testpeer *writer, *learner;
};

static void open_writer(struct run *run)
{
    run->writer = nomem_writer(&run->embed, 40000);
}

/* n items of two steps over two chunks, the first with a large one. */
static void insert(struct run *run, const char *table, uint64_t first_key, uint32_t n, bool large)
{
    static uint8_t big[80000];
    struct testpeer *peer = run->writer;
    uint32_t layout = testpeer_plain(peer, table);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = first_key + i, two[2] = {key, key};
        const void *blocks[] = {&two, large && i == n - 1 ? big : NULL};
        uint64_t chunk = testpeer_chunk(peer, 1, blocks, large && i == n - 1);
        testpeer_item(peer, layout, key, 1 + (double)i, i ? chunk - 1 : chunk, 0, i ? 2 : 1);
    }
    nomem_push(run->writer);
}

static struct testpeer_answer *sample(struct run *run, const char *table, uint32_t count, bool distinct)
{
    return nomem_sample(run->learner, table, count, distinct);
}

/* ---- scenarios ---- */

static void scene_session(struct run *run)
{
    open_writer(run);
    insert(run, "plain", 1, 3, false);
    testpeer_reconnect(run->writer);
    assert_int_equal(testpeer_resume(run->writer, 1, false)->status, RP_OK);
    insert(run, "plain", 4, 3, false);
}

/* More than the queue takes: the rest waits, one among them for its rejection. */
static void scene_wait(struct run *run)
{
    insert(run, "queue", 1, 2, false);
    struct testpeer *peer = run->writer;
    uint32_t layout = testpeer_plain(peer, "queue");
    for (uint64_t key = 3; key < 14; key++) {
        const void *blocks[] = {&key, NULL};
        uint64_t chunk = testpeer_chunk(peer, 1, blocks, false);
        testpeer_item(peer, layout, key, key == 7 ? -1 : 1, chunk, 0, 1);
        if (key % 10 == 0)
            nomem_push(run->writer);
    }
    nomem_push(run->writer);
    for (uint64_t key = 1; key < 13; key++) {
        uint64_t got = sample(run, "queue", 1, false)->reply->sample->key[0], want = key < 7 ? key : key + 1;
        if (got != want)
            fail_msg("key %llu came, key %llu was next", (unsigned long long)got, (unsigned long long)want);
    }
    /* By now it has been told of the one that was refused. */
    assert_int_equal(testpeer_heartbeat(peer, 0, false)->status, RP_OK);
    assert_int_equal(peer->credit->n_rejections, 1);
    assert_int_equal(peer->credit->rejections[0]->key, 7);
    assert_int_equal(peer->credit->rejections[0]->status, RP_INVALID_ARGUMENT);
    assert_int_equal(peer->credit->rejections[0]->item, 7);
}

static void prepare_items(struct run *run)
{
    insert(run, "plain", 1, 20, true);
    insert(run, "prio", 1, 20, false);
    insert(run, "queue", 1, 3, false);
    insert(run, "copied", 1, 10, false);
}

static void scene_sample(struct run *run)
{
    sample(run, "plain", 20, false);
    sample(run, "prio", 30, false);
    sample(run, "prio", 10, true);
    sample(run, "queue", 2, false);
    sample(run, "copied", 4, false);
    sample(run, "queue", 1, false);
}

/* A permit, and the samples that it pays for: charged once, however often they are asked for. */
static void scene_permit(struct run *run)
{
    Replay__Permit permit = REPLAY__PERMIT__INIT;
    permit.table = testpeer_text("prio");
    permit.count = 7;
    TESTPEER_REQUEST(request, PERMIT, permit, &permit);
    for (uint32_t i = 0; i < 2; i++) {
        const struct testpeer_answer *answer = testpeer_call(run->learner, &request);
        assert_int_equal(answer->status, RP_OK);
        assert_int_equal(answer->reply->permit->granted, 7);
    }
    Replay__Sample paid = REPLAY__SAMPLE__INIT;
    paid.table = permit.table;
    paid.count = 14;
    paid.paid = true;
    request.body_case = REPLAY__REQUEST__BODY_SAMPLE;
    request.sample = &paid;
    const struct testpeer_answer *answer = testpeer_call(run->learner, &request);
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(answer->reply->sample->n_key, 14);
}

/* With a payload, which testpeer_call does not send; asked again with the same id if there was no memory. */
static struct testpeer_answer *call_with(struct testpeer *peer, Replay__Request *request, const void *payload,
                                         size_t size)
{
    uint64_t id = testpeer_ask_with(peer, request, 0, payload, size);
    struct testpeer_answer *answer = testpeer_poll(peer, id);
    if (answer && answer->status == RP_OK)
        return answer;
    nomem_refused(peer, answer);
    answer->id = 0;
    testpeer_ask_with(peer, request, id, payload, size);
    answer = testpeer_good(peer, id);
    return answer;
}

static void put(struct run *run, const char *name, size_t size, uint64_t version)
{
    static uint8_t value[50000];
    Replay__ParamsPut ask = REPLAY__PARAMS_PUT__INIT;
    ask.name = testpeer_text(name);
    TESTPEER_REQUEST(request, PARAMS_PUT, params_put, &ask);
    struct testpeer_answer *answer = call_with(run->learner, &request, value, size);
    assert_int_equal(answer->reply->params->slots[0]->version, version);
}

/* A request of its own peer that waits; finished by what the test does then. */
struct waiting {
    struct testpeer *peer;
    Replay__Request request;
    uint64_t id;
    const void *payload;
    size_t size;
};

static void waiting_begin(struct waiting *self, struct run *run, const void *payload, size_t size)
{
    self->peer = nomem_peer(&run->embed);
    self->payload = payload;
    self->size = size;
    self->id = testpeer_ask_with(self->peer, &self->request, 0, payload, size);
    struct testpeer_answer *answer = testpeer_poll(self->peer, self->id);
    if (!answer)
        return;
    nomem_refused(self->peer, answer);
    answer->id = 0;
    testpeer_ask_with(self->peer, &self->request, self->id, payload, size);
    assert_null(testpeer_poll(self->peer, self->id));
}

static struct testpeer_answer *waiting_end(struct waiting *self)
{
    struct testpeer_answer *answer = testpeer_await(self->peer, self->id);
    if (answer->status != RP_OK) {
        nomem_refused(self->peer, answer);
        answer->id = 0;
        testpeer_ask_with(self->peer, &self->request, self->id, self->payload, self->size);
        answer = testpeer_await(self->peer, self->id);
    }
    assert_int_equal(answer->status, RP_OK);
    return answer;
}

/* A sampler that waits for all that the table will have, over 79 chunks: what it could not take for lack of memory it takes later. */
static void scene_waiting(struct run *run)
{
    Replay__Sample ask = REPLAY__SAMPLE__INIT;
    ask.table = testpeer_text("plain");
    ask.count = 40;
    ask.distinct = true;
    ask.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
    ask.timeout_ms = 5000;
    struct waiting waiting = {.request = REPLAY__REQUEST__INIT};
    waiting.request.body_case = REPLAY__REQUEST__BODY_SAMPLE;
    waiting.request.sample = &ask;
    waiting_begin(&waiting, run, NULL, 0);
    insert(run, "plain", 1, 40, false);
    if (!testpeer_poll(waiting.peer, waiting.id)) { /* once a second it is tried again */
        assert_true(nomem_has_failed());
        nomem_disarm();
        embed_advance(&run->embed, 1100);
    }
    assert_int_equal(waiting_end(&waiting)->reply->sample->n_key, 40);
}

static void scene_params(struct run *run)
{
    put(run, "policy", 100, 1);
    put(run, "value", 50000, 1);
    char *names[] = {testpeer_text("policy"), testpeer_text("value")};
    uint64_t have[] = {1, 1};
    Replay__ParamsGet ask = REPLAY__PARAMS_GET__INIT;
    ask.name = names;
    ask.n_name = 2;
    struct waiting waiting = {.request = REPLAY__REQUEST__INIT};
    waiting.request.body_case = REPLAY__REQUEST__BODY_PARAMS_GET;
    waiting.request.params_get = &ask;
    struct testpeer_answer *answer = testpeer_call(run->learner, &waiting.request);
    assert_int_equal(answer->status, RP_OK);
    assert_int_equal(answer->n_payload, 2);
    ask.have = have;
    ask.n_have = 2;
    waiting_begin(&waiting, run, NULL, 0);
    put(run, "value", 40000, 2);
    answer = waiting_end(&waiting);
    assert_int_equal(answer->n_payload, 1);
    assert_int_equal(answer->reply->params->slots[0]->version, 2);
}

static void scene_reduce(struct run *run)
{
    static const float values[2][64] = {{1, 2, 3}, {10, 20, 30}};
    Replay__Reduce join = REPLAY__REDUCE__INIT;
    TESTPEER_REQUEST(request, REDUCE, reduce, &join);
    join.group = testpeer_text("learners");
    join.op = REPLAY__REDUCE__OP__JOIN;
    for (join.member = 1; join.member < 3; join.member++)
        assert_int_equal(testpeer_call(run->learner, &request)->status, RP_OK);
    for (uint64_t round = 1; round < 3; round++) {
        Replay__Reduce asks[2];
        struct waiting waiting[2];
        for (uint32_t i = 0; i < 2; i++) {
            replay__reduce__init(&asks[i]);
            asks[i].group = testpeer_text("learners");
            asks[i].member = i + 1;
            asks[i].round = round;
            waiting[i] = (struct waiting){.request = REPLAY__REQUEST__INIT};
            waiting[i].request.body_case = REPLAY__REQUEST__BODY_REDUCE;
            waiting[i].request.reduce = &asks[i];
        }
        for (uint32_t i = 0; i < 2; i++) {
            waiting[i].peer = nomem_peer(&run->embed);
            waiting[i].id = testpeer_ask_with(waiting[i].peer, &waiting[i].request, 0, values[i], sizeof values[i]);
        }
        for (uint32_t i = 0; i < 2; i++) { /* a round without memory for its sum is refused for all */
            struct testpeer_answer *answer = testpeer_poll(waiting[i].peer, waiting[i].id);
            if (!answer || answer->status == RP_OK)
                continue;
            nomem_refused(waiting[i].peer, answer);
            answer->id = 0;
            testpeer_ask_with(waiting[i].peer, &waiting[i].request, waiting[i].id, values[i], sizeof values[i]);
        }
        for (uint32_t i = 0; i < 2; i++) {
            struct testpeer_answer *answer = testpeer_good(waiting[i].peer, waiting[i].id);
            assert_int_equal(answer->reply->reduce->round, round);
            assert_int_equal(answer->reply->reduce->contributors, 2);
            float third;
            memcpy(&third, (const char *)zmq_msg_data(&answer->payload[0]) + 8, sizeof third);
            assert_true(third == 33);
        }
    }
}

/* ---- all of them ---- */

static void play(const struct nomem_scene *scene, uint64_t n, enum nomem_mode mode, struct state *out)
{
    static struct run run;
    embed_start(&run.embed, tables, scene->more);
    run.learner = nomem_peer(&run.embed);
    if (scene->act != scene_session) {
        open_writer(&run);
        if (scene->prepare)
            scene->prepare(&run);
    }
    nomem_arm(n, mode);
    scene->act(&run);
    nomem_disarm();
    embed_advance(&run.embed, 1100);
    nomem_look(run.embed.broker, out);
    embed_stop(&run.embed);
}

int main(void)
{
    static const struct nomem_scene scenes[] = {
        {"session", .act = scene_session},
        {"wait", .act = scene_wait},
        {"sample", .prepare = prepare_items, .act = scene_sample},
        {"waiting", .act = scene_waiting},
        {"permit", .prepare = prepare_items, .act = scene_permit},
        {"params", .act = scene_params},
        {"reduce", .act = scene_reduce},
    };
    const struct nomem_group group = {
        scenes, sizeof scenes / sizeof scenes[0], play, nomem_compare, sizeof(struct state), 0};
    return nomem_main(&group);
}
