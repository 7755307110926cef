/* Every allocation of a broker that keeps its state on disk fails once, and from each on all of them do: journal, checkpoint,
 * restore, and chunks that are spilled and read back. Whoever asked gets an error, nobody
 * crashes or waits for ever, nothing leaks, and after a retry the tables, and the files, are as if nothing had failed. */
#include "broker/journal/stream.h"
#include "tests/support/nomem_peer.h"
#include "tests/support/twin.h"

/* ---- a broker with a folder, a writer and a learner ---- */

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

struct run {
    struct embed embed;
    struct twin_folder folder;
    struct testpeer *writer, *learner;
};

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
    run->writer->oldest_chunk = run->writer->chunk + 1;
    nomem_push(run->writer);
}

static struct testpeer_answer *sample(struct run *run, const char *table, uint32_t count)
{
    return nomem_sample(run->learner, table, count, false);
}

/* A checkpoint that fails is asked for again. */
static void checkpoint(struct run *run)
{
    for (uint32_t tries = 0; tries < 2; tries++) {
        Replay__Checkpoint ask = REPLAY__CHECKPOINT__INIT;
        TESTPEER_REQUEST(request, CHECKPOINT, checkpoint, &ask);
        uint64_t id = testpeer_ask(run->learner, &request);
        struct testpeer_answer *answer = testpeer_poll(run->learner, id);
        /* The end of a checkpoint is synced by another thread. */
        for (uint32_t ms = 0; !answer && ms < 2000 && run->embed.broker->peers.waits.count; ms++) {
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

/* ---- all of them ---- */

static void start(struct run *run, const struct nomem_scene *scene)
{
    char more[300];
    folder_make(&run->folder);
    if (scene->more)
        snprintf(more, sizeof more, scene->more, run->folder.path);
    embed_start(&run->embed, tables, scene->more ? more : twin_config(&run->folder, "checkpoint: {every: 0s}\n"));
    run->learner = nomem_peer(&run->embed);
    run->writer = nomem_writer(&run->embed, BIG);
}

static void serve(const struct nomem_scene *scene, uint64_t n, enum nomem_mode mode, struct state *out)
{
    static struct run run;
    start(&run, scene);
    if (scene->prepare)
        scene->prepare(&run);
    embed_settle(&run.embed);
    nomem_others(scene->threads);
    nomem_arm(n, mode);
    scene->act(&run);
    nomem_disarm();
    nomem_others(false);
    embed_settle(&run.embed);
    nomem_look(run.embed.broker, out);
    if (run.embed.broker->stream->journal)
        twin_check_files(&run.embed, &run.folder);
    embed_stop(&run.embed);
    twin_folder_fini(&run.folder);
}

/* ---- start ---- */

static struct twin_folder saved; /* the files of a broker that was killed */

static void start_again(const struct nomem_scene *scene, uint64_t n, enum nomem_mode mode, struct state *out)
{
    err = (rp_error){0};
    static struct run run;
    char yaml[2000], problems[1000], more[300];
    memset(&run, 0, sizeof run);
    folder_make(&run.folder);
    if (saved.path[0])
        twin_folder_fill(&run.folder, &saved);
    snprintf(more, sizeof more, scene->more, run.folder.path);
    snprintf(yaml, sizeof yaml,
             "service: inproc://service\ningest: inproc://ingest\nevents: inproc://events\nseed: 7\n%s\ntables:\n%s",
             more, tables);
    assert_true(embed_read_config(yaml, &run.embed.config, problems, sizeof problems));
    log_set_level(LEVEL_OFF);
    run.embed.manual.now_ns = 1000 * NS_PER_S;
    run.embed.context = zmq_ctx_new();
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
    nomem_look(run.embed.broker, out);
    embed_stop(&run.embed);
    twin_folder_fini(&run.folder);
}

static struct run to_restore;

static void restore_before(void)
{
    start(&to_restore, &(struct nomem_scene){.name = "restore"});
    prepare_items(&to_restore);
    checkpoint(&to_restore);
    sample(&to_restore, "queue", 2);
    insert(&to_restore, "plain", 20, 1, 1, false);
    assert_int_equal(testpeer_counter(to_restore.learner, "steps", 5), 5);
    embed_settle(&to_restore.embed);
    twin_kill(&to_restore.embed);
    saved = to_restore.folder;
}

static void restore_after(void)
{
    twin_folder_fini(&to_restore.folder);
    saved.path[0] = '\0';
}

int main(void)
{
    static const char cold[] = "folder: %s\njournal: off\ncheckpoint: {keep: 0}\nstorage: {memory: 1MiB}",
                      all[] = "folder: %s\njournal: never\nstorage: {memory: 64MiB}\ncheckpoint: {every: 0s}";
    /* Reads and writes of cold chunks are tried until there is memory: with none for ever, the test would wait, too. */
    static const struct nomem_scene scenes[] = {
        {"journal_insert", .act = scene_journal_insert},
        {"journal_sample", .prepare = prepare_items, .act = scene_journal_sample},
        {"checkpoint", .prepare = prepare_items, .act = scene_checkpoint},
        {"spill_in", .prepare = prepare_spilled, .act = scene_spill_in, .more = cold, .threads = true,
         .only_once = true},
        {"spill_out", .act = scene_spill_out, .more = cold, .threads = true, .only_once = true},
        {"restore", .more = all, .play = start_again, .before = restore_before, .after = restore_after},
    };
    /* From the n-th on, and from the next one on, is nearly the same: every tenth will do. */
    const struct nomem_group group = {
        scenes, sizeof scenes / sizeof scenes[0], serve, nomem_compare, sizeof(struct state), 10};
    return nomem_main(&group);
}
