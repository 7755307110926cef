/* The journal: whatever happens in a broker, its files make the same state. */

#include "broker/journal/reader.h"
#include "broker/journal/stream.h"
#include "tests/support/naive.h"
#include "tests/support/world.h"

static bool all_are_used(const struct tables *tables)
{
    for (uint32_t i = 0; i < tables->n; i++)
        if (tables->list[i].stats.total_inserts == 0 || tables->list[i].stats.total_samples == 0)
            return false;
    return true;
}

/* Numbers and credit of every answer. */
static void check_told(const struct sessions *sessions, const struct testpeer *peer)
{
    const struct session *session = session_find((struct sessions *)(uintptr_t)sessions, peer->session);
    const Replay__Credit *told = peer->credit;
    assert_non_null(session);
    assert_true(session->epoch >= told->epoch && session->epoch >= peer->epoch);
    assert_true(session->received >= told->received);
    assert_true(session->allowed_bytes >= told->allowed_bytes);
    for (size_t t = 0; t < told->n_table; t++) {
        const struct flow *flow = &session->flows[told->table[t]];
        assert_true(flow->resolved >= told->resolved[t]);
        assert_true(flow->allowed >= told->allowed[t]);
        assert_true(flow->rejected >= told->rejected[t]);
    }
    assert_true(session->confirmed_rejections + session->rejection_count >= told->first_rejection + told->n_rejections);
}

TEST(whatever_happens_the_files_make_the_same_state)
{
    struct world world;
    world_start(&world, naive_seed(__func__), NULL);
    const struct tables *tables = &world.embed.broker->tables;
    for (uint32_t round = 0; round < 12 || (round < 60 && !all_are_used(tables)); round++) {
        world_run(&world, 120);
        tables = &world.embed.broker->tables; /* the world may have restarted it */
        struct twin_files files;
        twin_load(&files, &world.embed, &world.folder, 0);
        for (uint32_t i = 0; i < WORLD_PEERS; i++) {
            testpeer_read(world.peers[i]);
            check_told(&files.broker->sessions, world.peers[i]);
        }
        twin_unload(&files);
        twin_check_files(&world.embed, &world.folder);
    }
    uint64_t rejected = 0;
    for (uint32_t i = 0; i < tables->n; i++)
        rejected += tables->list[i].stats.rejected;
    assert_true(all_are_used(tables) && rejected > 0 && world.embed.broker->stream->segments.n > 1);
    world_stop(&world);
}

/* Picks of one sample are one entry as long as nothing comes between. */
TEST(picks_in_a_row_are_one_entry)
{
    struct embed embed;
    struct twin_folder folder;
    twin_folder_init(&folder);
    embed_start(&embed, world_tables, twin_config(&folder, NULL));
    struct testpeer *peer = testpeer_opened(&embed, false);
    testpeer_inserted(peer, "fifo", 1, 20, 1);
    testpeer_sampled(peer, "fifo", 16);
    struct twin_files files;
    twin_load(&files, &embed, &folder, 0);
    assert_int_equal(files.loading.selections.count, 1);
    const struct kept_image *kept = &TAILQ_FIRST(&files.loading.kept)->kept;
    assert_int_equal(kept->picks.n, 16);
    assert_true(kept->info.answered);
    assert_int_equal(kept->info.client, peer->client);
    assert_int_equal(files.loading.tables[0].limiter.samples, 16);
    /* START, 7 TABLEs, ORDINAL, SESSION, FORM, LAYOUT, 20 CHUNKs and INSERTs, PROGRESS, PICK, ANSWERED, replies */
    assert_true(files.loading.files.journal_entries < 20 + 16);
    twin_unload(&files);
    embed_stop(&embed);
    twin_folder_fini(&folder);
}

/* What a request did, and the reply that keeps it from being done again, are in one record: a process that is killed has
 * written both, or none. And the reply waits for that record. */
TEST(a_put_and_its_reply_are_in_one_record)
{
    struct embed embed;
    struct twin_folder folder;
    twin_folder_init(&folder);
    embed_start(&embed, world_tables, twin_config(&folder, NULL));
    struct testpeer *peer = testpeer_new(&embed);
    uint64_t named = peer->client;
    static uint8_t value[3 * RECORD_BYTES];
    static const size_t sizes[] = {10, 60000, 100000, sizeof value};
    for (uint32_t i = 0; i < 4; i++) {
        memset(value, (int)i + 1, sizeof value);
        peer->client = i == 2 ? 0 : named; /* nobody has no reply to remember */
        uint64_t id = testpeer_put(peer, "p", 0, value, sizes[i]);
        assert_int_equal(testpeer_await(peer, id)->status, RP_OK);
        assert_true(embed.broker->stream->durable >= stream_now(embed.broker->stream));
    }
    uint32_t slots = 0, replies = 0;
    struct reader reader;
    assert_int_equal(reader_open(&reader, &embed.broker->stream->folder, DISK_SEGMENT, 1, &err), RP_OK);
    struct record_view record;
    while (reader_next(&reader, &record, &err) == RP_OK) {
        struct entry_reader entries = entry_reader(record);
        uint32_t slots_here = 0, replies_here = 0;
        for (struct entry_view entry; entry_next(&entries, &entry);) {
            slots_here += entry.type == ENTRY_SLOT;
            replies_here += entry.type == ENTRY_REPLY;
        }
        assert_true(slots_here <= 1 && replies_here <= slots_here);
        slots += slots_here;
        replies += replies_here;
    }
    reader_close(&reader);
    assert_int_equal(slots, 4);
    assert_int_equal(replies, 3);
    struct twin_files files;
    twin_load(&files, &embed, &folder, 0);
    const struct params *params = &files.broker->params;
    assert_int_equal(params->n_slots, 1);
    assert_int_equal(params->slots[0].version, 4);
    assert_int_equal(zmq_msg_size(&params->slots[0].value->parts[0]), sizeof value);
    assert_memory_equal(zmq_msg_data(&params->slots[0].value->parts[0]), value, sizeof value);
    twin_unload(&files);
    embed_stop(&embed);
    twin_folder_fini(&folder);
}
