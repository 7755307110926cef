/* Checkpoints of a real broker: when they are made, what a restart makes of them, and what remains after kill -9. */

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/process.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"

#define TABLE "  - {name: t, max_size: 200000, sampler: {kind: fifo}, limiter: {kind: none}}\n"

static struct broker_process broker;
static void *context;
static struct testpeer *peer;

/* ---- the folder ---- */

static uint32_t count_files(const char *prefix, const char *suffix)
{
    uint32_t n = 0;
    DIR *dir = opendir(tempdir);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        size_t size = strlen(entry->d_name), end = strlen(suffix);
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && size > end &&
             strcmp(entry->d_name + size - end, suffix) == 0;
    }
    closedir(dir);
    return n;
}

static bool has_checkpoint(uint32_t number)
{
    char path[128];
    snprintf(path, sizeof path, "%s/checkpoint-%08u.replay", tempdir, number);
    return access(path, F_OK) == 0;
}

static int is_there(void *ctx)
{
    return has_checkpoint(*(uint32_t *)ctx);
}

static int is_gone(void *ctx)
{
    return !has_checkpoint(*(uint32_t *)ctx) && has_checkpoint(*(uint32_t *)ctx + 20);
}

static void await_checkpoint(uint32_t number)
{
    if (!process_await(is_there, &number))
        fail_msg("there is no checkpoint %u", number);
}

/* ---- the broker ---- */

/* `options`: of the section checkpoint. */
static void start(const char *options, bool journal)
{
    char more[400];
    assert_int_equal(tempdir_enter(NULL), 0);
    snprintf(more, sizeof more, "folder: %s\njournal: %s\ncheckpoint: {%s}\n", tempdir, journal ? "1s" : "off",
             options);
    file_put(tempdir_at("mine.txt"), "");
    broker_process_start(&broker, TABLE, more);
    context = zmq_ctx_new();
    peer = testpeer_connect(context, broker.service);
    testpeer_open(peer, false);
}

static void connect_again(void)
{
    testpeer_close(peer);
    peer = testpeer_connect(context, broker.service);
    testpeer_open(peer, false);
}

static void end(void)
{
    testpeer_close(peer);
    zmq_ctx_term(context);
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
    while (testpeer_resolved(peer, 0) < peer->tables[0].items)
        testpeer_heartbeat(peer, 0, false);
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
    Replay__Checkpoint checkpoint = REPLAY__CHECKPOINT__INIT;
    checkpoint.start_only = start_only;
    if (timeout_ms >= 0) {
        checkpoint.has_timeout_ms_case = REPLAY__CHECKPOINT__HAS_TIMEOUT_MS_TIMEOUT_MS;
        checkpoint.timeout_ms = (uint64_t)timeout_ms;
    }
    TESTPEER_REQUEST(request, CHECKPOINT, checkpoint, &checkpoint);
    return testpeer_ask(peer, &request);
}

static struct testpeer_answer *checkpoint(void)
{
    struct testpeer_answer *answer = testpeer_await(peer, ask(false, NO_TIMEOUT));
    if (answer->status != RP_OK)
        fail_msg("%s", answer->text);
    return answer;
}

/* ---- tests ---- */

TEST(a_client_asks)
{
    start("every: 0s", false);
    insert(1, 1000);
    const Replay__CheckpointReply *reply = checkpoint()->reply->checkpoint;
    assert_int_equal(reply->number, 1);
    assert_int_equal(reply->based_on, 0);
    assert_int_equal(reply->items, 1000);
    assert_true(reply->written_bytes > 1000 * 100);
    assert_true(reply->took_ns > 0);
    assert_string_equal(reply->folder, tempdir);
    assert_true(has_checkpoint(1));
    insert(1001, 10);
    reply = checkpoint()->reply->checkpoint;
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
    context = zmq_ctx_new();
    peer = testpeer_connect(context, broker.service);
    struct testpeer_answer *answer = testpeer_await(peer, ask(false, NO_TIMEOUT));
    assert_int_equal(answer->status, RP_FAILED_PRECONDITION);
    assert_non_null(strstr(answer->text, "write folder"));
    assert_null(testpeer_info(peer)->disk);
    kill(broker.pid, SIGUSR1); /* is no reason to end */
    assert_int_equal(size(), 0);
    testpeer_close(peer);
    zmq_ctx_term(context);
    broker_process_fini(&broker);
}

TEST(a_signal_the_period_and_the_end)
{
    start("every: 10min, keep: 5", false);
    insert(1, 300);
    kill(broker.pid, SIGUSR1);
    await_checkpoint(1);
    insert(301, 300);
    int status = broker_process_stop(&broker, SIGTERM);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(has_checkpoint(2));
    assert_int_equal(count_files("checkpoint-", ".part"), 0);
    broker_process_again(&broker, NULL);
    connect_again();
    assert_int_equal(size(), 600);
    struct testpeer_answer *answer = testpeer_sampled(peer, "t", 1);
    assert_int_equal(answer->reply->sample->key[0], 1);
    sampled_check(answer, 0);
    end();
    start("every: 20ms, keep: 3", false);
    insert(1, 300);
    uint32_t first = 1;
    if (!process_await(is_gone, &first)) /* a chain of changes has an end, and then its base goes */
        fail_msg("checkpoint 1 does not go");
    assert_true(count_files("checkpoint-", ".replay") <= 3 + 17);
    end();
}

static void damage(uint32_t number, bool cut)
{
    char path[128];
    snprintf(path, sizeof path, "%s/checkpoint-%08u.replay", tempdir, number);
    int file = open(path, O_RDWR);
    struct stat about;
    uint8_t byte = 0;
    assert_true(file >= 0 && fstat(file, &about) == 0);
    if (cut)
        assert_int_equal(ftruncate(file, about.st_size / 2), 0);
    else if (pread(file, &byte, 1, about.st_size / 2) == 1)
        byte ^= 0x55;
    if (!cut)
        assert_int_equal(pwrite(file, &byte, 1, about.st_size / 2), 1);
    close(file);
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
        broker_process_again(&broker, NULL);
        connect_again();
        assert_int_equal(size(), 700);
        /* Life goes on, with a number that was never used. */
        insert(2000, 10);
        const Replay__CheckpointReply *reply = checkpoint()->reply->checkpoint;
        assert_int_equal(reply->number, 3);
        assert_int_equal(reply->based_on, 0);
        broker_process_stop(&broker, SIGKILL);
        broker_process_again(&broker, NULL);
        connect_again();
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
            broker_process_again(&broker, NULL);
            assert_int_equal(count_files("checkpoint-", ".part"), 0);
            connect_again();
            uint64_t n = size();
            assert_true(n == 60500 || (n == 500 && !journal));
        }
        checkpoint();
        end();
    }
}
