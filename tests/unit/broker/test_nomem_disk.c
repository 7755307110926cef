/* Every allocation of a broker that keeps its state on disk fails once, and from each on all of them do: journal, checkpoint,
 * restore, chunks that are spilled and read back, the configuration and the start. Whoever asked gets an error, nobody
 * crashes or waits for ever, nothing leaks, and after a retry the tables, and the files, are as if nothing had failed. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "broker/checkpoint/checkpoint_run.h"
#include "broker/journal/stream.h"
#include "broker/spill/spill.h"
#include "tests/support/nomem.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

/* ---- only what the broker does counts ---- */

void __real_broker_turn(struct broker *self, int wait_ms);
void __wrap_broker_turn(struct broker *self, int wait_ms);
struct broker *__real_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err);
struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err);

void __wrap_broker_turn(struct broker *self, int wait_ms)
{
    nomem_enter();
    __real_broker_turn(self, wait_ms);
    nomem_leave();
}

struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err)
{
    nomem_enter();
    struct broker *broker = __real_broker_new(config, clock, context, err);
    nomem_leave();
    return broker;
}

/* ---- a broker with a folder, a writer and a learner ---- */

#define TABLES 3u
static const char tables[] =
    "  - {name: plain, max_size: 40, sampler: {kind: fifo}, remover: {kind: fifo}, limiter: {kind: none}}\n"
    "  - {name: queue, max_size: 200, sampler: {kind: fifo}, max_times_sampled: 1, limiter: {kind: none}}\n"
    "  - {name: prio, max_size: 200, sampler: {kind: prioritized}, remover: {kind: fifo}, limiter: {kind: none}}\n";

#define BIG 40000u
#define BIG_ROWS 28u /* more than a record has room for */

/* In memory, where it can be: folders are made by the hundred. */
static void folder_make(struct twin_folder *self)
{
    snprintf(self->path, sizeof self->path, "/dev/shm/replay-nomem-XXXXXX");
    if (!mkdtemp(self->path))
        twin_folder_init(self);
}

static void each_file(const struct twin_folder *self, void (*act)(const char *path, const char *to), const char *to)
{
    DIR *folder = opendir(self->path);
    assert_non_null(folder);
    for (const struct dirent *file; (file = readdir(folder)) != NULL;) {
        char path[400], target[400];
        snprintf(path, sizeof path, "%s/%s", self->path, file->d_name);
        snprintf(target, sizeof target, "%s/%s", to ? to : "", file->d_name);
        if (file->d_name[0] != '.')
            act(path, target);
    }
    closedir(folder);
}

static void file_copy(const char *path, const char *to)
{
    static uint8_t bytes[1 << 20];
    FILE *in = fopen(path, "r"), *out = fopen(to, "w");
    assert_true(in && out);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, in)) > 0;)
        assert_int_equal(fwrite(bytes, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

static void file_remove(const char *path, const char *to)
{
    (void)to;
    assert_int_equal(unlink(path), 0);
}

static void folder_remove_all(const struct twin_folder *self)
{
    each_file(self, file_remove, NULL);
    assert_int_equal(rmdir(self->path), 0);
}

struct run {
    struct embed embed;
    struct twin_folder folder;
    struct testpeer *writer, *learner;
};

static void refused(struct testpeer *peer, const struct testpeer_answer *answer)
{
    (void)peer;
    if (!nomem_has_failed())
        fail_msg("refused without a reason: %u %s", answer ? answer->status : 0, answer ? answer->text : "no answer");
    /* A reply that there was no memory for while it waited for the disk is lost on the way. */
    if (answer && answer->status != RP_NO_MEMORY)
        fail_msg("status %u instead of NO_MEMORY: %s", answer->status, answer->text);
    nomem_disarm();
}

static struct testpeer *peer_new(struct run *run)
{
    struct testpeer *peer = testpeer_new(&run->embed);
    peer->refused = refused;
    peer->keep = true;
    return peer;
}

static void open_writer(struct run *run)
{
    static const struct testpeer_column columns[] = {{"x", "uint64", 0, {0}, 8}, {"big", "uint8", 1, {BIG}, BIG}};
    run->writer = peer_new(run);
    testpeer_open_with(run->writer, true, columns, 2);
}

/* Until all that was pushed is in its table. */
static void push(struct run *run)
{
    struct testpeer *peer = run->writer;
    peer->oldest_chunk = peer->chunk + 1;
    testpeer_push(peer);
    for (uint32_t tries = 0;; tries++) {
        embed_settle(&run->embed);
        assert_int_equal(testpeer_heartbeat(peer, 0, true)->status, RP_OK);
        if (peer->credit->received == peer->number && !peer->credit->gap)
            return;
        if (!nomem_has_failed() || tries == 2)
            fail_msg("message %llu of %llu was received", (unsigned long long)peer->credit->received,
                     (unsigned long long)peer->number);
        nomem_disarm();
        assert_int_equal(testpeer_resume(peer, 1, true)->status, RP_OK);
        assert_int_equal(peer->lost_messages, 0);
        testpeer_resend(peer, peer->credit->received);
    }
}

/* n items of a chunk each, of so many rows; own: in a frame of its own, which the disk writer copies. */
static void insert(struct run *run, const char *table, uint64_t first_key, uint32_t n, uint32_t rows, bool own)
{
    static uint64_t x[BIG_ROWS];
    static uint8_t big[BIG_ROWS * BIG];
    uint32_t layout = testpeer_plain(run->writer, table);
    for (uint32_t i = 0; i < n; i++) {
        x[0] = first_key + i;
        const void *blocks[] = {x, rows > 1 ? big : NULL};
        uint64_t chunk = testpeer_chunk(run->writer, rows, blocks, own);
        testpeer_item(run->writer, layout, first_key + i, 1 + (double)i, chunk, 0, rows);
    }
    push(run);
}

static struct testpeer_answer *sample(struct run *run, const char *table, uint32_t count)
{
    Replay__Request request = REPLAY__REQUEST__INIT;
    Replay__Sample ask = REPLAY__SAMPLE__INIT;
    ask.table = testpeer_text(table);
    ask.count = count;
    ask.has_timeout_ms_case = REPLAY__SAMPLE__HAS_TIMEOUT_MS_TIMEOUT_MS;
    request.body_case = REPLAY__REQUEST__BODY_SAMPLE;
    request.sample = &ask;
    struct testpeer_answer *answer = testpeer_call(run->learner, &request);
    if (answer->status != RP_OK)
        fail_msg("sample: %u %s", answer->status, answer->text);
    assert_int_equal(answer->reply->sample->n_key, count);
    return answer;
}

/* A checkpoint that fails is asked for again. */
static void checkpoint(struct run *run)
{
    for (uint32_t tries = 0; tries < 2; tries++) {
        Replay__Request request = REPLAY__REQUEST__INIT;
        Replay__Checkpoint ask = REPLAY__CHECKPOINT__INIT;
        request.body_case = REPLAY__REQUEST__BODY_CHECKPOINT;
        request.checkpoint = &ask;
        uint64_t id = testpeer_ask(run->learner, &request);
        struct testpeer_answer *answer = testpeer_poll(run->learner, id);
        /* The end of a checkpoint is synced by another thread. */
        for (uint32_t ms = 0; !answer && ms < 2000 && run->embed.broker->service.checkpoint_waits; ms++) {
            usleep(1000);
            answer = testpeer_poll(run->learner, id);
        }
        if (answer && answer->status == RP_OK)
            return;
        if (!nomem_has_failed() || (answer && answer->status != RP_NO_MEMORY && answer->status != RP_IO))
            fail_msg("checkpoint: %u %s", answer ? answer->status : 0, answer ? answer->text : "no answer");
        nomem_disarm();
    }
    fail_msg("no checkpoint although there is memory");
}

/* ---- scenes ---- */

static void nothing(struct run *run)
{
    (void)run;
}

static void scene_journal_insert(struct run *run)
{
    insert(run, "plain", 1, 3, 1, false);
    insert(run, "prio", 1, 1, BIG_ROWS, true);
    insert(run, "plain", 10, 1, BIG_ROWS, false);
    insert(run, "queue", 1, 2, 1, false);
}

static void prepare_items(struct run *run)
{
    insert(run, "plain", 1, 4, 1, false);
    insert(run, "queue", 1, 5, 1, false);
    insert(run, "prio", 1, 3, 1, false);
    insert(run, "prio", 10, 1, 2, true);
}

static void scene_journal_sample(struct run *run)
{
    sample(run, "plain", 4);
    sample(run, "prio", 4);
    for (uint64_t key = 1; key < 5; key += 2) {
        const uint64_t *got = sample(run, "queue", 2)->reply->sample->key;
        assert_true(got[0] == key && got[1] == key + 1);
    }
    uint64_t keys[] = {1, 2};
    double priorities[] = {9, 8};
    assert_int_equal(testpeer_update(run->learner, "prio", 2, keys, priorities)->status, RP_OK);
    assert_int_equal(testpeer_delete(run->learner, "plain", 2, keys)->status, RP_OK);
    assert_int_equal(testpeer_counter(run->learner, "steps", 5), 5);
}

/* Every few hundred bytes a segment ends. */
static void prepare_segments(struct run *run)
{
    prepare_items(run);
    struct stream *stream = run->embed.broker->stream;
    stream->segment_bytes = FILE_HEAD_BYTES + stream->first_bytes + 300;
}

static void scene_segments(struct run *run)
{
    for (uint64_t i = 0; i < 3; i++)
        insert(run, "plain", 20 + i, 1, 1, false);
}

static void scene_checkpoint(struct run *run)
{
    checkpoint(run);
    insert(run, "plain", 20, 2, 1, false);
    sample(run, "queue", 1);
    checkpoint(run);
}

#define SPILLED 16u

/* More than storage.memory: most of it is on disk only. */
static void prepare_spilled(struct run *run)
{
    for (uint64_t key = 1; key < SPILLED; key += 4)
        insert(run, "queue", key, 4, 3, false);
    embed_settle(&run->embed);
    assert_true(run->embed.broker->store.spilled_chunks > SPILLED / 4);
}

/* Every item is delivered once, in its turn. */
static void scene_spill_in(struct run *run)
{
    for (uint64_t key = 1; key < SPILLED; key += 8) {
        const Replay__SampleReply *reply = sample(run, "queue", 8)->reply->sample;
        for (uint32_t i = 0; i < 8; i++)
            assert_int_equal(reply->key[i], key + i);
    }
}

static void scene_spill_out(struct run *run)
{
    for (uint64_t key = 1; key < SPILLED; key += 4)
        insert(run, "queue", key, 4, 3, false);
    nomem_disarm();
    embed_advance(&run->embed, 1100);
    assert_true(run->embed.broker->store.spilled_chunks > 0);
}

/* ---- what there is in the end ---- */

struct state {
    uint32_t n_sessions, size[TABLES];
    uint64_t inserts[TABLES], samples[TABLES], updates[TABLES], bytes[TABLES], keys[TABLES];
    int64_t counter;
};

static void look(struct run *run, struct state *out)
{
    struct broker *broker = run->embed.broker;
    memset(out, 0, sizeof *out);
    out->n_sessions = broker->sessions.n_open;
    for (uint32_t t = 0; t < TABLES; t++) {
        const struct table *table = &broker->tables.list[t];
        out->size[t] = table->in.size;
        out->inserts[t] = table->stats.total_inserts;
        out->samples[t] = table->stats.total_samples;
        out->updates[t] = table->stats.updates;
        out->bytes[t] = table->bytes;
        for (uint32_t slot = 0; slot < table->in.high; slot++)
            if (table->in.items[slot].span.n)
                out->keys[t] += table->in.items[slot].key * UINT64_C(0x9E3779B97F4A7C15) ^ table->in.items[slot].key;
    }
    out->counter = broker->params.n_counters ? broker->params.counters[0].value : 0;
}

static void compare(const struct state *want, const struct state *got)
{
    for (uint32_t t = 0; t < TABLES; t++)
        if (got->size[t] != want->size[t] || got->inserts[t] != want->inserts[t] || got->samples[t] != want->samples[t])
            fail_msg("table %u: size %u %u inserts %u %u samples %u %u", t, got->size[t], want->size[t],
                     (unsigned)got->inserts[t], (unsigned)want->inserts[t], (unsigned)got->samples[t],
                     (unsigned)want->samples[t]);
    assert_memory_equal(got, want, sizeof *want);
}

/* ---- all of them ---- */

struct scene {
    const char *name;
    void (*prepare)(struct run *run), (*act)(struct run *run);
    const char *more; /* keys of the configuration; NULL: a journal */
    bool threads;     /* the threads that read and write files have no memory, either */
    void (*once)(const struct scene *scene, uint64_t n, enum nomem_mode mode, struct state *out);
};

static void start(struct run *run, const struct scene *scene)
{
    char more[300];
    folder_make(&run->folder);
    if (scene->more)
        snprintf(more, sizeof more, scene->more, run->folder.path);
    embed_start(&run->embed, tables, scene->more ? more : twin_config(&run->folder, "checkpoint: {on_exit: false}\n"));
    run->learner = peer_new(run);
    open_writer(run);
}

static void serve(const struct scene *scene, uint64_t n, enum nomem_mode mode, struct state *out)
{
    static struct run run;
    start(&run, scene);
    scene->prepare(&run);
    embed_settle(&run.embed);
    nomem_others(scene->threads);
    nomem_arm(n, mode);
    scene->act(&run);
    nomem_disarm();
    nomem_others(false);
    embed_settle(&run.embed);
    look(&run, out);
    if (run.embed.broker->stream->journal)
        twin_check_image(&run.embed, &run.folder);
    embed_stop(&run.embed);
    folder_remove_all(&run.folder);
}

/* ---- configuration and start ---- */

static struct twin_folder saved; /* the files of a broker that was killed */

static void start_again(const struct scene *scene, uint64_t n, enum nomem_mode mode, struct state *out)
{
    static struct run run;
    char yaml[2000], problems[1000], more[300];
    memset(&run, 0, sizeof run);
    folder_make(&run.folder);
    if (saved.path[0])
        each_file(&saved, file_copy, run.folder.path);
    snprintf(more, sizeof more, scene->more, run.folder.path);
    snprintf(yaml, sizeof yaml,
             "service: inproc://service\ningest: inproc://ingest\nevents: inproc://events\nseed: 7\n%s\ntables:\n%s",
             more, tables);
    assert_true(embed_read_config(yaml, &run.embed.config, problems, sizeof problems));
    log_set_level(LEVEL_OFF);
    run.embed.manual.now_ns = 1000 * NS_PER_S;
    run.embed.context = zmq_ctx_new();
    rp_error err = {0};
    nomem_arm(n, mode);
    run.embed.broker = broker_new(&run.embed.config, clock_manual(&run.embed.manual), run.embed.context, &err);
    if (!run.embed.broker) {
        assert_true(nomem_has_failed());
        if (err.status != RP_NO_MEMORY)
            fail_msg("status %u instead of NO_MEMORY: %s", err.status, err.text);
        nomem_disarm();
        run.embed.broker = broker_new(&run.embed.config, clock_manual(&run.embed.manual), run.embed.context, &err);
        if (!run.embed.broker)
            fail_msg("with memory again: %s", err.text);
    }
    nomem_disarm();
    embed_settle(&run.embed);
    look(&run, out);
    embed_stop(&run.embed);
    folder_remove_all(&run.folder);
}

static void read_config(const struct scene *scene, uint64_t n, enum nomem_mode mode, struct state *out)
{
    char yaml[2000];
    memset(out, 0, sizeof *out);
    snprintf(yaml, sizeof yaml, "%s\ntables:\n%s", scene->more, tables);
    for (uint32_t tries = 0; tries < 2; tries++) {
        struct broker_config config = {0};
        nomem_enter();
        if (!tries)
            nomem_arm(n, mode);
        struct schema_report *report = schema_report_new();
        bool ok = report && schema_read_text(&broker_schema, "test.yaml", yaml, &config, report);
        bool told = !report || schema_report_text(report)[0] != '\0';
        schema_report_destroy(&report);
        bool failed = nomem_disarm();
        nomem_leave();
        assert_true(ok || (failed && told));
        if (ok) {
            out->size[0] = config.tables.count;
            out->bytes[0] = (uint64_t)config.memory_limit;
            for (uint32_t i = 0; i < config.tables.count; i++) {
                const struct table_config *table = (const struct table_config *)config.tables.data + i;
                out->keys[i] = strlen(table->name);
                out->inserts[i] = (uint64_t)table->max_size;
            }
        }
        schema_free(&broker_schema, &config);
        if (ok)
            return;
    }
    fail_msg("not read although there is memory");
}

static struct {
    const char *scene;
    uint64_t n;
    int mode;
    bool done;
} now;

/* For people: which allocation it was. */
static int tell(void **state)
{
    (void)state;
    char what[64];
    snprintf(what, sizeof what, "%s, %s", now.scene, now.mode == NOMEM_ONCE ? "once" : "for ever");
    if (!now.done)
        nomem_print_failed(what, now.n);
    nomem_disarm();
    nomem_others(false);
    return 0;
}

/* A thread that ends may have a block for a moment longer. */
static void await_held(uint64_t want)
{
    for (int ms = 0; nomem_held() != want && ms < 3000; ms++)
        usleep(1000);
}

static void run_scene(const struct scene *scene)
{
    static struct state want, got;
    scene->once(scene, 0, NOMEM_ONCE, &want); /* what is made once and for all is there then */
    uint64_t count = nomem_count(), held = nomem_held();
    for (int ms = 0; ms < 20; ms++, usleep(1000))
        held = nomem_held() < held ? nomem_held() : held;
    assert_true(count > 0);
    /* Reads and writes of cold chunks are tried until there is memory: with none for ever, the test would wait, too. */
    int last = scene->threads && scene->more ? NOMEM_ONCE : NOMEM_FOR_EVER;
    for (int mode = NOMEM_ONCE; mode <= last; mode++) {
        bool failed = true;
        /* From the n-th on, and from the next one on, is nearly the same: every tenth will do. */
        for (uint64_t n = 1; failed; n += mode == NOMEM_ONCE ? 1 : 10) {
            now.scene = scene->name;
            now.n = n;
            now.mode = mode;
            now.done = false;
            assert_true(n <= 2 * count + 40);
            nomem_mark();
            scene->once(scene, n, (enum nomem_mode)mode, &got);
            compare(&want, &got);
            await_held(held);
            if (nomem_held() != held)
                nomem_print_held(5);
            assert_int_equal(nomem_held(), held);
            now.done = true;
            failed = nomem_has_failed();
        }
    }
    if (getenv("NOMEM_ONLY"))
        fprintf(stderr, "%s: %u allocations\n", scene->name, (unsigned)count);
}

static void test_journal_insert(void **state)
{
    (void)state;
    run_scene(&(struct scene){"journal_insert", nothing, scene_journal_insert, NULL, false, serve});
}

static void test_journal_sample(void **state)
{
    (void)state;
    run_scene(&(struct scene){"journal_sample", prepare_items, scene_journal_sample, NULL, false, serve});
}

static void test_segments(void **state)
{
    (void)state;
    run_scene(&(struct scene){"segments", prepare_segments, scene_segments, NULL, true, serve});
}

static void test_checkpoint(void **state)
{
    (void)state;
    run_scene(&(struct scene){"checkpoint", prepare_items, scene_checkpoint, NULL, false, serve});
}

static void test_spill_in(void **state)
{
    (void)state;
    run_scene(
        &(struct scene){"spill_in", prepare_spilled, scene_spill_in, "storage: {dir: %s, memory: 1MiB}", true, serve});
}

static void test_spill_out(void **state)
{
    (void)state;
    run_scene(&(struct scene){"spill_out", nothing, scene_spill_out, "storage: {dir: %s, memory: 1MiB}", true, serve});
}

static const char start_config[] =
    "journal: {dir: %s, fsync: never}\nstorage: {memory: 64MiB}\ncheckpoint: {on_exit: false}";

static void test_start(void **state)
{
    (void)state;
    run_scene(&(struct scene){"start", nothing, nothing, start_config, false, start_again});
}

static void test_restore(void **state)
{
    (void)state;
    static struct run run;
    start(&run, &(struct scene){.name = "restore"});
    prepare_items(&run);
    checkpoint(&run);
    sample(&run, "queue", 2);
    insert(&run, "plain", 20, 1, 1, false);
    assert_int_equal(testpeer_counter(run.learner, "steps", 5), 5);
    embed_settle(&run.embed);
    twin_kill(&run.embed);
    saved = run.folder;
    run_scene(&(struct scene){"restore", nothing, nothing, start_config, false, start_again});
    folder_remove_all(&run.folder);
    saved.path[0] = '\0';
}

static void test_config(void **state)
{
    (void)state;
    run_scene(
        &(struct scene){"config", nothing, nothing, "memory_limit: 1GiB\nsession: {expiry: 7s}", false, read_config});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_journal_insert, tell), cmocka_unit_test_teardown(test_journal_sample, tell),
        cmocka_unit_test_teardown(test_segments, tell),       cmocka_unit_test_teardown(test_checkpoint, tell),
        cmocka_unit_test_teardown(test_spill_in, tell),       cmocka_unit_test_teardown(test_spill_out, tell),
        cmocka_unit_test_teardown(test_config, tell),         cmocka_unit_test_teardown(test_start, tell),
        cmocka_unit_test_teardown(test_restore, tell),
    };
    if (getenv("NOMEM_ONLY")) /* for people */
        cmocka_set_test_filter(getenv("NOMEM_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
