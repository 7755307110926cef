/* A broker that holds many times its memory: a real process, with real files. */

#include "tests/support/naive.h"
#include "tests/support/process.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define MIB (1u << 20)
#define ITEM 8192u
#define BATCH 16u
#define TABLE "  - {name: t, max_size: 100000, sampler: {kind: uniform}, limiter: {kind: none}}\n"

struct world {
    struct broker_process broker;
    struct twin_folder folder;
    struct testpeer *writer;
    uint64_t keys; /* 1 .. keys are in the table */
};

static struct testpeer *connect_peer(struct world *self)
{
    return testpeer_connect(self->broker.service);
}

/* keys: further ones of the configuration. */
static void begin(struct world *self, const char *keys)
{
    twin_folder_init(&self->folder);
    broker_process_start(&self->broker, TABLE, textf("folder: %s\nmemory_limit: 64MiB\n%s", self->folder.path, keys));
    self->writer = connect_peer(self);
    static const struct testpeer_column column = {"x", "uint8", 1, {ITEM}, ITEM};
    testpeer_open_with(self->writer, false, &column, 1);
}

static void end(struct world *self)
{
    testpeer_close(self->writer);
    broker_process_fini(&self->broker);
    twin_folder_fini(&self->folder);
}

FIXTURE(struct world, (void), end)

static void fill(uint64_t key, uint8_t *out)
{
    struct rng rng = rng_of(key);
    for (uint32_t i = 0; i < ITEM; i += 8) {
        uint64_t word = rng_next(&rng);
        memcpy(out + i, &word, 8);
    }
}

/* Sends a batch if there is credit for it. */
static bool insert(struct world *self)
{
    struct testpeer *peer = self->writer;
    if (self->keys + BATCH > testpeer_allowed(peer, 0) ||
        peer->sent_bytes + (ITEM + 100) * BATCH > peer->credit->allowed_bytes) {
        testpeer_heartbeat(peer, 0, false);
        testpeer_forget(peer);
        return false;
    }
    uint32_t layout = testpeer_plain(peer, "t");
    uint8_t data[ITEM];
    for (uint32_t i = 0; i < BATCH; i++) {
        fill(++self->keys, data);
        const void *blocks[] = {data};
        testpeer_item(peer, layout, self->keys, 1, testpeer_chunk(peer, 1, blocks, false), 0, 1);
    }
    peer->oldest_chunk = peer->chunk + 1;
    testpeer_push(peer);
    return true;
}

static bool all_resolved(struct world *self)
{
    testpeer_heartbeat(self->writer, 0, false);
    assert_int_equal(self->writer->credit->n_rejections, 0);
    testpeer_forget(self->writer);
    return testpeer_resolved(self->writer, 0) == self->keys;
}

static void insert_all(struct world *self, uint64_t items)
{
    while (self->keys < items)
        insert(self);
    wait_until(all_resolved(self));
}

static void check(const struct testpeer_answer *answer)
{
    if (answer->status != RP_OK)
        fail_msg("%s", answer->text);
    for (uint32_t i = 0; i < answer->reply->sample->n_key; i++) {
        uint8_t want[ITEM];
        uint32_t rows, row_bytes;
        uint8_t *data = sampled_rows(answer, i, 0, &rows, &row_bytes);
        assert_int_equal(row_bytes, ITEM);
        fill(answer->reply->sample->key[i], want);
        assert_memory_equal(data, want, ITEM);
        free(data);
    }
}

static void fetch_all(struct world *self)
{
    struct testpeer *peer = connect_peer(self);
    for (uint64_t first = 1; first <= self->keys; first += 64) {
        uint64_t keys[64];
        for (uint32_t i = 0; i < 64; i++)
            keys[i] = first + i;
        const struct testpeer_answer *answer = testpeer_fetch(peer, "t", 64, keys);
        check(answer);
        assert_int_equal(answer->reply->sample->n_key, self->keys - first < 64 ? self->keys - first + 1 : 64);
        testpeer_forget(peer);
    }
    testpeer_close(peer);
}

static uint64_t resident(const struct world *self)
{
    return process_memory(self->broker.pid, "VmRSS");
}

static bool is_instrumented(void)
{
    const char *how = getenv("RP_SANITIZE");
    return how && how[0] && strcmp(how, "coverage") != 0;
}

CASE(eight_times_memory)
{
    begin(f, "journal: off\ncheckpoint: {keep: 0}\nstorage: {memory: 8MiB}\n");
    uint64_t before = resident(f), most = 0;
    while (f->keys < 64 * MIB / ITEM) {
        insert_all(f, f->keys + 256);
        uint64_t now = resident(f);
        most = now > most ? now : most;
    }
    fetch_all(f);
    struct testpeer *peer = connect_peer(f);
    for (uint32_t i = 0; i < 100; i++) {
        check(testpeer_sampled(peer, "t", 64));
        testpeer_forget(peer);
        uint64_t now = resident(f);
        most = now > most ? now : most;
    }
    testpeer_close(peer);
    /* 8 MiB of chunks, up to 4 MiB more that are being read for replies, records and messages under way. */
    print_message("resident: %u MiB at first, %u MiB at most\n", (unsigned)(before / MIB), (unsigned)(most / MIB));
    if (!is_instrumented())
        assert_true(most < before + 40 * MIB);
}

static const struct testpeer_answer *look(struct testpeer *peer, uint64_t id)
{
    testpeer_read(peer);
    const struct testpeer_answer *answer = peer->answers;
    while (answer && answer->id != id)
        answer = answer->next;
    return answer;
}

CASE(samplers_and_a_writer_at_once)
{
    begin(f, "journal: off\ncheckpoint: {keep: 0}\nstorage: {memory: 2MiB}\n");
    insert_all(f, 1024);
    enum { SAMPLERS = 6 };
    struct testpeer *peers[SAMPLERS];
    uint64_t ids[SAMPLERS], answered = 0;
    for (uint32_t i = 0; i < SAMPLERS; i++) {
        peers[i] = connect_peer(f);
        ids[i] = testpeer_sample(peers[i], "t", 32, NO_TIMEOUT, 0);
    }
    uint32_t idle = 0;
    while ((answered < 300 || f->keys < 4096) && idle < 20000) {
        bool moved = f->keys < 4096 && insert(f);
        for (uint32_t i = 0; i < SAMPLERS; i++) {
            const struct testpeer_answer *answer = look(peers[i], ids[i]);
            if (!answer)
                continue;
            check(answer);
            assert_int_equal(answer->reply->sample->n_key, 32);
            testpeer_forget(peers[i]);
            ids[i] = testpeer_sample(peers[i], "t", 32, NO_TIMEOUT, 0);
            answered++;
            moved = true;
        }
        idle = moved ? 0 : idle + 1;
        if (!moved)
            zmq_poll(NULL, 0, 1);
    }
    assert_true(answered >= 300);
    wait_until(all_resolved(f));
    for (uint32_t i = 0; i < SAMPLERS; i++) {
        check(testpeer_await(peers[i], ids[i]));
        testpeer_close(peers[i]);
    }
    fetch_all(f);
}

CASE(killed_and_started_again)
{
    begin(f, "journal: never\nstorage: {memory: 2MiB}\n");
    insert_all(f, 2048);
    fetch_all(f);
    broker_process_stop(&f->broker, SIGKILL);
    broker_process_again(&f->broker, NULL);
    fetch_all(f);
    broker_process_stop(&f->broker, SIGKILL);
    broker_process_again(&f->broker, NULL);
    struct testpeer *peer = connect_peer(f);
    for (uint32_t i = 0; i < 50; i++) {
        check(testpeer_sampled(peer, "t", 64));
        testpeer_forget(peer);
    }
    testpeer_close(peer);
}
