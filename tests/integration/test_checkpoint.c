/* Checkpoints of a real broker: when they are made, what a restart makes of them, and what remains after kill -9. */

#include <sys/wait.h>

#include "tests/support/process.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"

#define TABLE "  - {name: t, max_size: 200000, sampler: {kind: fifo}, limiter: {kind: none}}\n"

static struct broker_process broker;
static struct testpeer *peer;

/* ---- the folder ---- */

static uint32_t count_files(const char *pattern)
{
    uint32_t n;
    files_like(tempdir_at(pattern), &n);
    return n;
}

static char *checkpoint_path(uint32_t number)
{
    return textf("%s/checkpoint-%08u.replay", tempdir, number);
}

static bool has_checkpoint(uint32_t number)
{
    return file_exists(checkpoint_path(number));
}

/* ---- the broker ---- */

/* `options`: of the section checkpoint. */
static void start(const char *options, bool journal)
{
    assert_int_equal(tempdir_enter(NULL), 0);
    file_put(tempdir_at("mine.txt"), "");
    broker_process_start(
        &broker, TABLE, textf("folder: %s\njournal: %s\ncheckpoint: {%s}\n", tempdir, journal ? "1s" : "off", options));
    peer = testpeer_connect(broker.service);
    testpeer_open(peer, false);
}

static void restart(void)
{
    broker_process_again(&broker, NULL);
    testpeer_close(peer);
    peer = testpeer_connect(broker.service);
    testpeer_open(peer, false);
}

static void end(void)
{
    testpeer_close(peer);
    broker_process_fini(&broker);
    assert_true(file_exists(tempdir_at("mine.txt")));
    assert_int_equal(tempdir_leave(NULL), 0);
}

static void insert(uint64_t first, uint32_t n)
{
    while (n > 0) {
        uint64_t sent = peer->n_tables ? peer->tables[0].items : 0, allowed = testpeer_allowed(peer, 0);
        if (sent >= allowed) {
            testpeer_heartbeat(peer, 0, false);
            continue;
        }
        uint32_t part = allowed - sent < 500 ? (uint32_t)(allowed - sent) : 500;
        part = part < n ? part : n;
        testpeer_insert(peer, "t", first, part, 1);
        first += part;
        n -= part;
    }
    testpeer_await_resolved(peer, 0, peer->tables[0].items);
    testpeer_forget(peer);
}

static uint64_t size(void)
{
    uint64_t n = testpeer_table_info(peer, "t")->size;
    testpeer_forget(peer);
    return n;
}

static uint64_t ask(bool start_only, int64_t timeout_ms)
{
    return testpeer_ask(peer, REQUEST_OF(CHECKPOINT, checkpoint, Checkpoint, .start_only = start_only,
                                         TIMEOUT_OF(CHECKPOINT, timeout_ms)));
}

static const Replay__CheckpointReply *checkpoint(void)
{
    return testpeer_good(peer, ask(false, NO_TIMEOUT))->reply->checkpoint;
}

/* ---- tests ---- */

TEST(a_client_asks)
{
    start("every: 0s", false);
    insert(1, 1000);
    const Replay__CheckpointReply *reply = checkpoint();
    assert_int_equal(reply->number, 1);
    assert_int_equal(reply->based_on, 0);
    assert_int_equal(reply->items, 1000);
    assert_true(reply->written_bytes > 1000 * 100);
    assert_true(reply->took_ns > 0);
    assert_string_equal(reply->folder, tempdir);
    assert_true(has_checkpoint(1));
    insert(1001, 10);
    reply = checkpoint();
    assert_int_equal(reply->number, 2);
    assert_int_equal(reply->based_on, 1);
    assert_true(reply->written_bytes < 10000);
    const Replay__DiskInfo *disk = testpeer_info(peer)->disk;
    assert_non_null(disk);
    assert_string_equal(disk->folder, tempdir);
    assert_false(disk->journal);
    assert_int_equal(disk->checkpoint, 2);
    assert_false(disk->checkpoint_running);
    assert_true(disk->segments >= 1 && disk->bytes > 0);
    assert_string_equal(disk->trouble, "");
    end();
}

TEST(several_share_one_and_time_runs_out)
{
    start("every: 0s", false);
    insert(1, 20000);
    uint64_t first = ask(true, NO_TIMEOUT), hasty = ask(false, 0), second = ask(false, NO_TIMEOUT),
             third = ask(false, NO_TIMEOUT);
    assert_int_equal(testpeer_await(peer, first)->reply->checkpoint->number, 1);
    struct testpeer_answer *late = testpeer_await(peer, hasty);
    if (late->status != RP_OK) { /* it may have been quick */
        assert_int_equal(late->status, RP_DEADLINE_EXCEEDED);
        assert_non_null(strstr(late->text, "checkpoint "));
    }
    uint64_t number = testpeer_await(peer, second)->reply->checkpoint->number;
    uint64_t last = testpeer_await(peer, third)->reply->checkpoint->number;
    assert_true(number <= last && last <= 2); /* whoever comes while one is written gets the next */
    end();
}

TEST(it_says_that_it_is_off)
{
    broker_process_start(&broker, TABLE, NULL);
    peer = testpeer_connect(broker.service);
    struct testpeer_answer *answer = testpeer_await(peer, ask(false, NO_TIMEOUT));
    assert_int_equal(answer->status, RP_FAILED_PRECONDITION);
    assert_non_null(strstr(answer->text, "write folder"));
    assert_null(testpeer_info(peer)->disk);
    kill(broker.pid, SIGUSR1); /* is no reason to end */
    assert_int_equal(size(), 0);
    testpeer_close(peer);
    broker_process_fini(&broker);
}

TEST(a_signal_the_period_and_the_end)
{
    start("every: 10min, keep: 5", false);
    insert(1, 300);
    kill(broker.pid, SIGUSR1);
    wait_until(has_checkpoint(1));
    insert(301, 300);
    int status = broker_process_stop(&broker, SIGTERM);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(has_checkpoint(2));
    assert_int_equal(count_files("checkpoint-*.part"), 0);
    restart();
    assert_int_equal(size(), 600);
    struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1);
    assert_int_equal(answer->reply->sample->key[0], 1);
    sampled_check(answer, 0);
    end();
    start("every: 20ms, keep: 3", false);
    insert(1, 300);
    wait_until(!has_checkpoint(1) && has_checkpoint(21)); /* a chain of changes has an end, and then its base goes */
    assert_true(count_files("checkpoint-*.replay") <= 3 + 17);
    end();
}

static void damage(uint32_t number, bool cut)
{
    char *path = checkpoint_path(number);
    size_t size;
    char *bytes = file_bytes(path, &size);
    bytes[size / 2] ^= 0x55;
    file_write(path, bytes, cut ? size / 2 : size, 0644);
}

TEST(the_one_before_is_used)
{
    for (int cut = 0; cut < 2; cut++) {
        start("every: 0s", false);
        insert(1, 700);
        checkpoint();
        insert(701, 700);
        checkpoint();
        broker_process_stop(&broker, SIGKILL);
        damage(2, cut);
        restart();
        assert_int_equal(size(), 700);
        /* Life goes on, with a number that was never used. */
        insert(2000, 10);
        const Replay__CheckpointReply *reply = checkpoint();
        assert_int_equal(reply->number, 3);
        assert_int_equal(reply->based_on, 0);
        broker_process_stop(&broker, SIGKILL);
        restart();
        assert_int_equal(size(), 710);
        end();
    }
}

TEST(killed_while_one_is_written)
{
    for (int journal = 0; journal < 2; journal++) {
        start("every: 0s", journal);
        insert(1, 500);
        checkpoint();
        insert(501, 60000);
        for (uint32_t round = 0; round < 3; round++) {
            uint64_t id = ask(true, NO_TIMEOUT);
            assert_int_equal(testpeer_await(peer, id)->status, RP_OK);
            broker_process_stop(&broker, SIGKILL);
            restart();
            assert_int_equal(count_files("checkpoint-*.part"), 0);
            uint64_t n = size();
            assert_true(n == 60500 || (n == 500 && !journal));
        }
        checkpoint();
        end();
    }
}
