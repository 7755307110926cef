/* The formats of 0.1.0: tests/golden/disk holds a folder with a checkpoint and one with a journal alone. The broker loads them, and
 * finds in them what was put there.
 *
 * With RP_COMPAT_WRITE=DIR this program writes such folders below DIR, by the same calls that the check repeats. */

#include <sys/wait.h>

#include "tests/support/process.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"
#include "tests/support/twin.h"

#define TABLES                                                                                                         \
    "  - {name: line, max_size: 100, sampler: {kind: fifo}, limiter: {kind: none}}\n"                                  \
    "  - {name: prio, max_size: 100, sampler: {kind: prioritized},"                                                    \
    " limiter: {kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 2, error_buffer: 400}}\n"
#define CLIENT 4711u
#define SAMPLE_ID 101u
#define COUNTER_ID 201u
#define N_LINE 12u /* keys 1 to 12 */
#define N_PRIO 6u  /* keys 101 to 106, less 103 */

struct desk {
    struct twin_folder folder;
    struct broker_process broker;
    struct testpeer *peer;
};

static void desk_start(struct desk *self, bool journal)
{
    broker_process_start(&self->broker, TABLES,
                         textf("folder: %s\njournal: %s\n", self->folder.path, journal ? "1s" : "off"));
    self->peer = testpeer_connect(self->broker.service);
    self->peer->client = CLIENT;
}

static void desk_end(struct desk *self, int how)
{
    testpeer_close(self->peer);
    int status = broker_process_stop(&self->broker, how);
    assert_true(how == SIGKILL || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    broker_process_fini(&self->broker);
}

/* ---- what is put there, and found again ---- */

static struct testpeer_answer *ask_sample(struct testpeer *peer)
{
    return testpeer_await(peer, testpeer_sample_as(peer, SAMPLE_ID, "line", 4, 0, DISTINCT));
}

static int64_t add_to_counter(struct testpeer *peer)
{
    Replay__Request *request = REQUEST_OF(COUNTER, counter, Counter, .name = testpeer_text("steps"), .add = 42);
    return testpeer_good(peer, testpeer_ask_with(peer, request, COUNTER_ID, NULL, 0))->reply->counter->value;
}

static void fill(struct testpeer *peer)
{
    static const double priorities[] = {3, 5};
    static const uint64_t updated[] = {101, 102}, deleted = 103;
    testpeer_good(peer, testpeer_put(peer, "policy", 0, "old", 3));
    testpeer_good(peer, testpeer_put(peer, "policy", 0, "weights", 7));
    testpeer_insert(peer, "line", 1, N_LINE, 1);
    testpeer_insert(peer, "prio", 101, N_PRIO, 2);
    testpeer_await_resolved(peer, 0, N_LINE);
    testpeer_await_resolved(peer, 1, N_PRIO);
    assert_int_equal(testpeer_update(peer, "prio", 2, updated, priorities)->status, RP_OK);
    assert_int_equal(testpeer_delete(peer, "prio", 1, &deleted)->status, RP_OK);
    testpeer_sampled(peer, "prio", 8);
    assert_int_equal(ask_sample(peer)->status, RP_OK);
    assert_int_equal(add_to_counter(peer), 42);
}

static void check_table(struct testpeer *peer, const char *name, uint64_t inserts, uint64_t deletes, uint64_t samples)
{
    const Replay__TableInfo *info = testpeer_table_info(peer, name);
    assert_int_equal(info->size, inserts - deletes);
    assert_int_equal(info->limiter->inserts, inserts);
    assert_int_equal(info->limiter->deletes, deletes);
    assert_int_equal(info->limiter->samples, samples);
    /* Counts that the files of that broker do not have follow from the items. */
    assert_int_equal(info->episodes, 1);
    assert_int_equal(info->deleted_episodes, 0);
}

static void check_items(struct testpeer *peer)
{
    static const uint64_t line[N_LINE] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, prio[] = {101, 102, 104, 105, 106};
    static const double priorities[] = {3, 5, 2, 2, 2};
    const struct testpeer_answer *answer = testpeer_fetch(peer, "line", N_LINE, line);
    assert_int_equal(answer->reply->sample->n_key, N_LINE);
    for (uint32_t i = 0; i < N_LINE; i++) {
        const Replay__SampleReply *reply = answer->reply->sample;
        assert_int_equal(reply->key[i], line[i]);
        assert_int_equal(sampled_u32(reply->times_sampled, reply->n_times_sampled, i), i < 4);
        sampled_check(answer, i);
    }
    answer = testpeer_fetch(peer, "prio", 5, prio);
    assert_int_equal(answer->reply->sample->n_key, 5);
    uint32_t sampled = 0;
    for (uint32_t i = 0; i < 5; i++) {
        const Replay__SampleReply *reply = answer->reply->sample;
        assert_true(reply->priority[i] == priorities[i]);
        sampled += sampled_u32(reply->times_sampled, reply->n_times_sampled, i);
        sampled_check(answer, i);
    }
    assert_int_equal(sampled, 8);
}

static void check_params(struct testpeer *peer)
{
    char *name = testpeer_text("policy");
    uint64_t have = 0;
    const struct testpeer_answer *answer =
        testpeer_call(peer, REQUEST_OF(PARAMS_GET, params_get, ParamsGet, .n_name = 1, .name = &name, .n_have = 1,
                                       .have = &have, TIMEOUT_OF(PARAMS_GET, 0)));
    assert_int_equal(answer->reply->params->n_slots, 1);
    assert_int_equal(answer->reply->params->slots[0]->version, 2);
    assert_int_equal(answer->n_payload, 1);
    assert_int_equal(zmq_msg_size(&answer->payload[0]), strlen("weights"));
    assert_memory_equal(zmq_msg_data(&answer->payload[0]), "weights", strlen("weights"));
}

static void check(struct testpeer *peer)
{
    check_table(peer, "line", N_LINE, 0, 4);
    check_table(peer, "prio", N_PRIO, 1, 8);
    assert_int_equal(testpeer_table_info(peer, "line")->unique_samples, 4);
    assert_in_range(testpeer_table_info(peer, "prio")->unique_samples, 1, N_PRIO - 1);
    check_items(peer);
    check_params(peer);
    assert_int_equal(testpeer_counter(peer, "steps", 0), 42);
    /* A request that is repeated with its id is answered as before, and changes nothing. */
    assert_int_equal(add_to_counter(peer), 42);
    assert_int_equal(testpeer_counter(peer, "steps", 0), 42);
    const struct testpeer_answer *answer = ask_sample(peer);
    assert_int_equal(answer->reply->sample->n_key, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(answer->reply->sample->key[i], i + 1);
        sampled_check(answer, i);
    }
    check_table(peer, "line", N_LINE, 0, 4);
    testpeer_forget(peer);
}

/* ---- the session: its id and ordinal are chance, and stand in a file beside the broker's ---- */

static void write_session(const struct desk *self)
{
    char text[2 * WIRE_SESSION_BYTES + 1];
    for (uint32_t i = 0; i < WIRE_SESSION_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", self->peer->session[i]);
    file_put(file_in(self->folder.path, "session.txt"), textf("%s %u\n", text, self->peer->ordinal));
}

static void check_session(struct desk *self)
{
    static const struct testpeer_column x = {"x", "uint64", 0, {0}, 8};
    struct testpeer *peer = self->peer;
    const char *text = file_text(file_in(self->folder.path, "session.txt"));
    for (uint32_t i = 0; i < WIRE_SESSION_BYTES; i++, text += 2)
        assert_int_equal(sscanf(text, "%2hhx", &peer->session[i]), 1);
    peer->columns[0] = x;
    peer->n_columns = 1;
    assert_int_equal(testpeer_resume(peer, 1, false)->status, RP_OK);
    assert_true(peer->resumed);
    assert_int_equal(peer->ordinal, strtoul(text, NULL, 10));
    assert_int_equal(testpeer_resolved(peer, 0), N_LINE);
    assert_int_equal(testpeer_resolved(peer, 1), N_PRIO);
}

/* ---- */

static void copy_files(const char *from, const char *to)
{
    assert_int_equal(system(textf("cp '%s'/*.replay '%s'/session.txt '%s'/", from, from, to)), 0);
}

static void write_folder(const char *to, bool journal)
{
    struct desk desk;
    twin_folder_init(&desk.folder);
    desk_start(&desk, journal);
    testpeer_open(desk.peer, false);
    fill(desk.peer);
    check(desk.peer);
    write_session(&desk);
    desk_end(&desk, journal ? SIGKILL : SIGTERM);
    copy_files(desk.folder.path, to);
    twin_folder_fini(&desk.folder);
}

static void load_folder(const char *name, bool journal)
{
    struct desk desk;
    const char *write = getenv("RP_COMPAT_WRITE"),
               *golden = file_in(write ? write : process_env("RP_SOURCE_DIR"), name);
    if (write)
        write_folder(golden, journal);
    twin_folder_init(&desk.folder);
    copy_files(golden, desk.folder.path);
    desk_start(&desk, journal);
    desk.peer->next_id = 1000; /* none that the files know */
    check_session(&desk);
    check(desk.peer);
    desk_end(&desk, SIGKILL);
    twin_folder_fini(&desk.folder);
}

TEST(a_checkpoint_of_0_1_0_is_loaded)
{
    load_folder("tests/golden/disk/checkpoint", false);
}

TEST(a_journal_of_0_1_0_is_loaded)
{
    load_folder("tests/golden/disk/journal", true);
}
