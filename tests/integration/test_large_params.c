/* Values of hundreds of megabytes in a slot: put and got in parts while others do the same, and while readers, publishers and the broker
 * are killed. Every word of a value follows from its seed and its place, so that a mixture of two values shows. */
#include <pthread.h>
#include <sys/wait.h>

#include "tests/support/asked.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"

#define SLOT "policy"
#define TABLE "  - {name: replay, max_size: 10}\n"
#define MB (1u << 20)
#define LARGE (300u * MB)
#define MIDDLE (64u * MB + 12u) /* its last part is short */
#define PARTS 600u              /* of LARGE */
#define WINDOW 32u

static uint64_t word(uint64_t seed, uint64_t i)
{
    return (seed << 40 ^ i) * UINT64_C(0x9e3779b97f4a7c15);
}

static uint8_t *value_new(uint64_t seed, size_t bytes)
{
    uint8_t *out = malloc(bytes);
    assert_non_null(out);
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t next = word(seed, i);
        memcpy(out + 8 * i, &next, 8);
    }
    memset(out + bytes / 8 * 8, (int)seed, bytes % 8);
    return out;
}

/* Returns the seed of a whole value; 0: it is not whole. */
static uint64_t seed_of(const rp_param *slot, size_t bytes)
{
    uint64_t first, next, at = 0;
    const uint8_t *data = slot->data;
    if (slot->bytes != bytes)
        return 0;
    memcpy(&first, data, 8);
    uint64_t seed = first * UINT64_C(0xf1de83e19937733d) >> 40; /* the inverse of the factor above */
    while (at < bytes / 8 && (memcpy(&next, data + 8 * at, 8), next == word(seed, at)))
        at++;
    for (size_t i = bytes / 8 * 8; i < bytes; i++)
        if (data[i] != (uint8_t)seed)
            return 0;
    return at == bytes / 8 ? seed : 0;
}

static rp_client *connect_to(const struct broker_process *broker)
{
    return CONNECT(broker->service, .backoff_max_ms = 50);
}

/* Values come by the socket, unless a test sets REPLAY_SHM to 1. */
static void begin(struct served *f)
{
    setenv("REPLAY_SHM", "0", 1);
    served_start(f, TABLE, "memory_limit: 4GiB\n", NULL);
}

/* The same with a broker that keeps its state in a folder. */
static void begin_with_journal(struct served *f)
{
    served_stop(f);
    tempdir_enter(NULL);
    broker_process_start(&f->broker, TABLE, textf("memory_limit: 4GiB\nfolder: %s\njournal: never\n", tempdir));
    f->client = connect_to(&f->broker);
}

static void end(struct served *f)
{
    served_stop(f);
    if (tempdir[0])
        tempdir_leave(NULL);
    tempdir[0] = '\0';
}

FIXTURE(struct served, begin, end)

static void put(rp_client *client, uint64_t seed, size_t bytes, uint64_t expect)
{
    uint8_t *data = value_new(seed, bytes);
    uint64_t version = 0;
    ok(rp_params_put(client, SLOT, data, bytes, WAIT, &version, &err));
    assert_int_equal(version, expect);
    free(data);
}

static uint64_t get(rp_client *client, uint64_t have, size_t bytes)
{
    SCOPED(rp_params) params = NULL;
    ok(rp_params_get(client, SLOT, have, WAIT, &params, &err));
    return seed_of(rp_params_slot(params), bytes);
}

/* Takes the next version and checks its form. Returns the seed of its value. */
static uint64_t take(rp_subscriber *subscriber, size_t bytes, uint32_t bf16)
{
    SCOPED(rp_params) params = NULL;
    ok(rp_subscriber_take(subscriber, WAIT, &params, &err));
    assert_int_equal(rp_params_slot(params)->bf16, bf16);
    return seed_of(rp_params_slot(params), bytes);
}

static void await_number(rp_client *client, const char *path, uint64_t least, uint64_t most)
{
    uint64_t now;
    wait_until((now = asked_number(client, path)) >= least && now <= most);
}

/* ---- children: this program again ---- */

/* Puts a value without end, or gets all versions without end, until it is killed. */
static int child_main(const char *what, const char *endpoint)
{
    rp_client *client = rp_client_connect(endpoint, NULL, WAIT, &err);
    for (uint64_t seed = 100, have = 0; client; seed++) {
        uint8_t *data = strcmp(what, "--put") == 0 ? value_new(seed, LARGE) : NULL;
        rp_params *params = NULL;
        if (data) {
            rp_params_put(client, SLOT, data, LARGE, WAIT, NULL, &err);
            free(data);
        } else if (rp_params_get(client, SLOT, have, WAIT, &params, &err) == RP_OK) {
            rp_params_release(&params); /* and again */
        }
    }
    return 1;
}

static pid_t child_start(const struct served *f, const char *what)
{
    const char *const argv[] = {"/proc/self/exe", what, f->broker.service, NULL};
    return process_spawn(argv, STDOUT_FILENO, STDERR_FILENO);
}

static void child_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- tests ---- */

CASE(sizes_around_the_bounds)
{
    static const size_t sizes[] = {4 * MB, 4 * MB + 1, 5 * MB, 5 * MB - 1, MIDDLE};
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        put(f->client, i + 1, sizes[i], i + 1);
        assert_int_equal(get(f->client, i, sizes[i]), i + 1);
    }
    rp_params *params = NULL;
    assert_int_equal(rp_params_get(f->client, SLOT, 5, 0, &params, &err), RP_DEADLINE_EXCEEDED);
    put(f->client, 9, 100, 6);
    assert_int_equal(get(f->client, 5, 100), 9);
}

struct reader {
    const struct served *f;
    pthread_t thread;
    uint64_t until, versions;
};

static void *reader_main(void *arg)
{
    struct reader *self = arg;
    SCOPED(rp_client) client = connect_to(&self->f->broker);
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(client, SLOT, 0, &err));
    for (uint64_t version = 0; version < self->until;) {
        SCOPED(rp_params) params = NULL;
        ok(rp_subscriber_take(subscriber, WAIT, &params, &err));
        version = rp_params_slot(params)->version;
        self->versions++;
        if (seed_of(rp_params_slot(params), LARGE) != version)
            fail_msg("version %llu is not whole", (unsigned long long)version);
    }
    return NULL;
}

/* Three readers read version 1 while 2 is put, and so on; another reader and another publisher are killed on the way. */
CASE(versions_are_put_while_old_ones_are_read)
{
    struct reader readers[3];
    put(f->client, 1, LARGE, 1);
    for (uint32_t i = 0; i < 3; i++) {
        readers[i] = (struct reader){.f = f, .until = 3};
        assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_main, &readers[i]), 0);
    }
    pid_t victim = child_start(f, "--get");
    put(f->client, 2, LARGE, 2);
    await_number(f->client, "server.memory.params_old", LARGE, UINT64_MAX); /* somebody still reads version 1 */
    child_kill(victim);
    victim = child_start(f, "--put");
    await_number(f->client, "server.memory.params_staged", LARGE, LARGE + LARGE / 100);
    child_kill(victim);
    put(f->client, 3, LARGE, 3); /* beside what the dead one has left */
    for (uint32_t i = 0; i < 3; i++) {
        pthread_join(readers[i].thread, NULL);
        assert_in_range(readers[i].versions, 1, 3);
    }
    assert_int_equal(get(f->client, 0, LARGE), 3);
    assert_in_range(asked_number(f->client, "server.memory.params"), LARGE, 4ull * LARGE);
    await_number(f->client, "server.memory.params_old", 0, 0);
}

/* Parts that a publisher or a subscriber has had. */
static uint64_t parts_put(rp_publisher *publisher)
{
    rp_publisher_stats stats = {.struct_size = sizeof stats};
    rp_publisher_get_stats(publisher, &stats);
    return stats.parts;
}

static uint64_t parts_got(rp_subscriber *subscriber)
{
    rp_subscriber_stats stats = {.struct_size = sizeof stats};
    rp_subscriber_get_stats(subscriber, &stats);
    return stats.parts;
}

/* Kills the broker as soon as some parts have come, before all have, and starts it again. */
#define restart_amid(f, parts)                                                                                         \
    do {                                                                                                               \
        wait_until((parts) >= 40);                                                                                     \
        broker_process_stop(&(f)->broker, SIGKILL);                                                                    \
        assert_true((parts) < PARTS);                                                                                  \
        broker_process_again(&(f)->broker, NULL);                                                                      \
    } while (0)

/* Puts a value as version 1, although the broker is killed meanwhile. */
static rp_publisher *put_and_restart(struct served *f, uint64_t seed)
{
    uint8_t *data = value_new(seed, LARGE);
    rp_publisher *publisher = must(rp_publisher_new(f->client, SLOT, &err));
    ok(rp_publisher_put(publisher, data, LARGE, &err));
    restart_amid(f, parts_put(publisher));
    uint64_t version = 0;
    ok(rp_publisher_flush(publisher, WAIT, &version, &err));
    assert_int_equal(version, 1);
    free(data);
    return publisher;
}

/* A broker with a journal is killed while a value is put, and again while it is got: both go on where they were. */
CASE(a_put_and_a_get_go_on_after_a_restart)
{
    begin_with_journal(f);
    SCOPED(rp_publisher) publisher = put_and_restart(f, 7);
    assert_in_range(parts_put(publisher), PARTS, PARTS + 3 * WINDOW); /* those in flight came twice, no others */
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(f->client, SLOT, 0, &err));
    restart_amid(f, parts_got(subscriber));
    assert_int_equal(take(subscriber, LARGE, 0), 7);
    assert_int_equal(parts_got(subscriber), PARTS);
}

/* Without a journal the broker that comes back knows nothing: the put begins again, and so does the get, with what is there then. */
CASE(a_put_and_a_get_begin_again_at_an_empty_broker)
{
    SCOPED(rp_publisher) publisher = put_and_restart(f, 7);
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(f->client, SLOT, 0, &err));
    restart_amid(f, parts_got(subscriber));
    put(f->client, 8, LARGE, 1); /* version 1 again, with other bytes */
    assert_int_equal(take(subscriber, LARGE, 0), 8);
}

/* On one host the value is mapped: no part is sent, and it stays what it was, whatever becomes of the broker. */
CASE(values_are_mapped_on_one_host)
{
    setenv("REPLAY_SHM", "1", 1);
    SCOPED(rp_client) client = connect_to(&f->broker);
    put(client, 1, MIDDLE, 1);
    SCOPED(rp_subscriber) subscriber = must(rp_subscriber_new(client, SLOT, 0, &err));
    SCOPED(rp_params) first = NULL, *second = NULL;
    ok(rp_subscriber_take(subscriber, WAIT, &first, &err));
    put(client, 2, MIDDLE, 2);
    ok(rp_subscriber_take(subscriber, WAIT, &second, &err));
    assert_int_equal(parts_got(subscriber), 0);
    assert_int_equal((uintptr_t)rp_params_slot(first)->data % 4096, 0);
    put(client, 3, MIDDLE, 3);
    broker_process_stop(&f->broker, SIGKILL);
    assert_int_equal(seed_of(rp_params_slot(first), MIDDLE), 1);
    assert_int_equal(seed_of(rp_params_slot(second), MIDDLE), 2);
}

/* A subscriber gets the form that it asked for, by the socket and by memory; the first one, where there is no second. */
CASE(a_second_form)
{
    uint8_t *data = value_new(1, MIDDLE), *half = value_new(2, MIDDLE / 2);
    SCOPED(rp_publisher) publisher = must(rp_publisher_new(f->client, SLOT, &err));
    for (uint32_t shm = 0; shm < 2; shm++) {
        setenv("REPLAY_SHM", shm ? "1" : "0", 1);
        SCOPED(rp_client) client = connect_to(&f->broker);
        ok(rp_publisher_put_bf16(publisher, data, MIDDLE, half, MIDDLE / 2, &err));
        ok(rp_publisher_flush(publisher, WAIT, NULL, &err));
        SCOPED(rp_subscriber) plain = must(rp_subscriber_new(client, SLOT, 0, &err));
        SCOPED(rp_subscriber) less = must(rp_subscriber_new_bf16(client, SLOT, 0, &err));
        assert_int_equal(take(plain, MIDDLE, 0), 1);
        assert_int_equal(take(less, MIDDLE / 2, 1), 2);
        put(client, 3, MIDDLE, 2 * shm + 2);
        assert_int_equal(take(less, MIDDLE, 0), 3);
    }
    free(data);
    free(half);
}

/* A value that does not fit is refused at its first part. */
CASE(too_large_a_value_is_refused)
{
    struct broker_process small = {0};
    broker_process_start(&small, TABLE, "memory_limit: 100MiB\n");
    rp_client *client = connect_to(&small);
    uint8_t *data = value_new(1, MIDDLE);
    rp_publisher *publisher = must(rp_publisher_new(client, SLOT, &err));
    ok(rp_publisher_put(publisher, data, MIDDLE, &err));
    must_fail(rp_publisher_flush(publisher, WAIT, NULL, &err), RP_RESOURCE_EXHAUSTED, "memory_limit");
    assert_true(parts_put(publisher) <= WINDOW);
    ok(rp_publisher_put(publisher, data, 20 * MB, &err)); /* the next one is none the worse for it */
    ok(rp_publisher_flush(publisher, WAIT, NULL, &err));
    rp_publisher_destroy(&publisher, 0, NULL);
    rp_client_destroy(&client);
    broker_process_fini(&small);
    free(data);
}

/* Asks for a part, or with put 0 for the newest version. Returns the number of that version's value. */
static uint64_t ask_part(struct testpeer *peer, uint64_t put, uint32_t part)
{
    char *name = testpeer_text(SLOT);
    Replay__Request *request = REQUEST_OF(PARAMS_GET, params_get, ParamsGet, .n_name = 1, .name = &name, .parts = true,
                                          .put = put, .part = part);
    return testpeer_good(peer, testpeer_ask(peer, request))->reply->params->slots[0]->parts->put;
}

/* The parameters of this broker may take 25 MiB: there is room for two versions, and a publisher waits while somebody
 * reads the first of them part by part. */
CASE(a_publisher_waits_for_a_slow_reader)
{
    enum { LAST = 17 };
    struct broker_process small;
    broker_process_start(&small, TABLE, "memory_limit: 100MiB\n");
    rp_client *client = connect_to(&small);
    struct testpeer *reader = testpeer_connect(small.service);
    rp_publisher *publisher = must(rp_publisher_new(client, SLOT, &err));
    uint8_t *data = value_new(1, 9 * MB);
    uint64_t values[2], version;
    for (uint32_t i = 0; i < 2; i++) {
        ok(rp_publisher_put(publisher, data, 9 * MB, &err));
        ok(rp_publisher_flush(publisher, WAIT, NULL, &err));
        values[i] = ask_part(reader, 0, 0);
        ask_part(reader, values[i], i ? LAST : 0);
    }
    ok(rp_publisher_put(publisher, data, 9 * MB, &err));
    must_fail(rp_publisher_flush(publisher, 1000, NULL, &err), RP_DEADLINE_EXCEEDED, "being read");
    for (uint32_t part = 1; part <= LAST; part++)
        ask_part(reader, values[0], part);
    ok(rp_publisher_flush(publisher, WAIT, &version, &err));
    assert_int_equal(version, 3);
    testpeer_close(reader);
    rp_publisher_destroy(&publisher, 0, NULL);
    rp_client_destroy(&client);
    broker_process_fini(&small);
    free(data);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strncmp(argv[1], "--", 2) == 0)
        return child_main(argv[1], argv[2]);
    return test_run(NULL, NULL);
}
