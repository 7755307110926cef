/* Values of hundreds of megabytes in a slot: put and got in parts while others do the same, and while readers, publishers and the broker
 * are killed. Every word of a value follows from its seed and its place, so that a mixture of two values shows. */
#include <pthread.h>
#include <sys/wait.h>

#include "replay/admin.h"
#include "replay/client.h"
#include "replay/params.h"
#include "tests/support/asked.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"
#include "tests/support/testpeer.h"

#define SLOT "policy"
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
    rp_client_options options = {.struct_size = sizeof options, .backoff_max_ms = 50};
    return must(rp_client_connect(broker->service, &options, WAIT, &err));
}

/* Values come by the socket, unless a test sets REPLAY_SHM to 1. */
static void begin(struct served *f)
{
    setenv("REPLAY_SHM", "0", 1);
    served_start(f, "  - {name: replay, max_size: 10}\n", "memory_limit: 4GiB\n");
}

/* The same with a broker that keeps its state in a folder. */
static void begin_with_journal(struct served *f)
{
    char more[400];
    served_stop(f);
    tempdir_enter(NULL);
    snprintf(more, sizeof more, "memory_limit: 4GiB\nfolder: %s\njournal: never\n", tempdir);
    broker_process_start(&f->broker, "  - {name: replay, max_size: 10}\n", more);
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
    rp_params *params = NULL;
    ok(rp_params_get(client, SLOT, have, WAIT, &params, &err));
    uint64_t seed = seed_of(rp_params_slot(params), bytes);
    rp_params_release(&params);
    return seed;
}

static uint64_t asked_number(rp_client *client, const char *path)
{
    rp_info *info = asked_info(client, NULL);
    uint64_t number = (uint64_t)rp_info_real(info, path);
    rp_info_free(&info);
    return number;
}

struct number {
    rp_client *client;
    const char *path;
    uint64_t least, most;
};

static int is_between(void *ctx)
{
    const struct number *want = ctx;
    uint64_t now = asked_number(want->client, want->path);
    return now >= want->least && now <= want->most;
}

static void await_number(rp_client *client, const char *path, uint64_t least, uint64_t most)
{
    struct number want = {client, path, least, most};
    if (!process_await(is_between, &want))
        fail_msg("%s is %llu", path, (unsigned long long)asked_number(client, path));
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
    uint64_t until, versions, torn;
    char text[256];
};

static void *reader_main(void *arg)
{
    struct reader *self = arg;
    rp_client *client = connect_to(&self->f->broker);
    rp_subscriber *subscriber = must(rp_subscriber_new(client, SLOT, 0, &err));
    for (uint64_t version = 0; version < self->until;) {
        rp_params *params = NULL;
        rp_status status = rp_subscriber_take(subscriber, WAIT, &params, &err);
        if (status != RP_OK) {
            snprintf(self->text, sizeof self->text, "%.255s", err.text);
            break;
        }
        version = rp_params_slot(params)->version;
        self->versions++;
        self->torn += seed_of(rp_params_slot(params), LARGE) != version;
        rp_params_release(&params);
    }
    rp_subscriber_destroy(&subscriber);
    rp_client_destroy(&client);
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
        assert_string_equal(readers[i].text, "");
        assert_int_equal(readers[i].torn, 0);
        assert_in_range(readers[i].versions, 1, 3);
    }
    assert_int_equal(get(f->client, 0, LARGE), 3);
    assert_in_range(asked_number(f->client, "server.memory.params"), LARGE, 4ull * LARGE);
    await_number(f->client, "server.memory.params_old", 0, 0);
}

/* Waits until the publisher or subscriber has had so many parts. */
struct parts {
    rp_publisher *publisher;
    rp_subscriber *subscriber;
    uint64_t least;
};

static uint64_t parts_now(const struct parts *of)
{
    rp_publisher_stats put = {.struct_size = sizeof put};
    rp_subscriber_stats got = {.struct_size = sizeof got};
    if (of->publisher)
        rp_publisher_get_stats(of->publisher, &put);
    else
        rp_subscriber_get_stats(of->subscriber, &got);
    return put.parts + got.parts;
}

static int has_parts(void *ctx)
{
    return parts_now(ctx) >= ((const struct parts *)ctx)->least;
}

/* Kills the broker as soon as so many parts have come, before all have, and starts it again. */
static void restart_amid(struct served *f, struct parts *parts)
{
    assert_true(process_await(has_parts, parts));
    broker_process_stop(&f->broker, SIGKILL);
    assert_true(parts_now(parts) < PARTS);
    broker_process_again(&f->broker, NULL);
}

/* Puts a value as version 1, although the broker is killed meanwhile. */
static rp_publisher *put_and_restart(struct served *f, uint64_t seed)
{
    uint8_t *data = value_new(seed, LARGE);
    rp_publisher *publisher = must(rp_publisher_new(f->client, SLOT, &err));
    struct parts putting = {.publisher = publisher, .least = 40};
    ok(rp_publisher_put(publisher, data, LARGE, &err));
    restart_amid(f, &putting);
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
    rp_publisher *publisher = put_and_restart(f, 7);
    struct parts putting = {.publisher = publisher};
    assert_in_range(parts_now(&putting), PARTS, PARTS + 3 * WINDOW); /* those in flight came twice, no others */
    rp_publisher_destroy(&publisher, 0, NULL);

    rp_subscriber *subscriber = must(rp_subscriber_new(f->client, SLOT, 0, &err));
    struct parts getting = {.subscriber = subscriber, .least = 40};
    restart_amid(f, &getting);
    rp_params *params = NULL;
    ok(rp_subscriber_take(subscriber, WAIT, &params, &err));
    assert_int_equal(seed_of(rp_params_slot(params), LARGE), 7);
    assert_int_equal(parts_now(&getting), PARTS);
    rp_params_release(&params);
    rp_subscriber_destroy(&subscriber);
}

/* Without a journal the broker that comes back knows nothing: the put begins again, and so does the get, with what is there then. */
CASE(a_put_and_a_get_begin_again_at_an_empty_broker)
{
    rp_publisher *publisher = put_and_restart(f, 7);
    rp_subscriber *subscriber = must(rp_subscriber_new(f->client, SLOT, 0, &err));
    struct parts getting = {.subscriber = subscriber, .least = 40};
    restart_amid(f, &getting);
    put(f->client, 8, LARGE, 1); /* version 1 again, with other bytes */
    rp_params *params = NULL;
    ok(rp_subscriber_take(subscriber, WAIT, &params, &err));
    assert_int_equal(seed_of(rp_params_slot(params), LARGE), 8);
    rp_params_release(&params);
    rp_subscriber_destroy(&subscriber);
    rp_publisher_destroy(&publisher, 0, NULL);
}

/* On one host the value is mapped: no part is sent, and it stays what it was, whatever becomes of the broker. */
CASE(values_are_mapped_on_one_host)
{
    setenv("REPLAY_SHM", "1", 1);
    rp_client *client = connect_to(&f->broker);
    put(client, 1, MIDDLE, 1);
    rp_subscriber *subscriber = must(rp_subscriber_new(client, SLOT, 0, &err));
    struct parts getting = {.subscriber = subscriber};
    rp_params *first = NULL, *second = NULL;
    ok(rp_subscriber_take(subscriber, WAIT, &first, &err));
    put(client, 2, MIDDLE, 2);
    ok(rp_subscriber_take(subscriber, WAIT, &second, &err));
    assert_int_equal(parts_now(&getting), 0);
    assert_int_equal((uintptr_t)rp_params_slot(first)->data % 4096, 0);
    put(client, 3, MIDDLE, 3);
    broker_process_stop(&f->broker, SIGKILL);
    assert_int_equal(seed_of(rp_params_slot(first), MIDDLE), 1);
    assert_int_equal(seed_of(rp_params_slot(second), MIDDLE), 2);
    rp_params_release(&first);
    rp_params_release(&second);
    rp_subscriber_destroy(&subscriber);
    rp_client_destroy(&client);
}

/* A subscriber gets the form that it asked for, by the socket and by memory; the first one, where there is no second. */
CASE(a_second_form)
{
    uint8_t *data = value_new(1, MIDDLE), *half = value_new(2, MIDDLE / 2);
    rp_publisher *publisher = must(rp_publisher_new(f->client, SLOT, &err));
    for (uint32_t shm = 0; shm < 2; shm++) {
        setenv("REPLAY_SHM", shm ? "1" : "0", 1);
        rp_client *client = connect_to(&f->broker);
        rp_params *params = NULL;
        ok(rp_publisher_put_bf16(publisher, data, MIDDLE, half, MIDDLE / 2, &err));
        ok(rp_publisher_flush(publisher, WAIT, NULL, &err));
        rp_subscriber *plain = must(rp_subscriber_new(client, SLOT, 0, &err));
        rp_subscriber *less = must(rp_subscriber_new_bf16(client, SLOT, 0, &err));
        ok(rp_subscriber_take(plain, WAIT, &params, &err));
        assert_int_equal(rp_params_slot(params)->bf16, 0);
        assert_int_equal(seed_of(rp_params_slot(params), MIDDLE), 1);
        rp_params_release(&params);
        ok(rp_subscriber_take(less, WAIT, &params, &err));
        assert_int_equal(rp_params_slot(params)->bf16, 1);
        assert_int_equal(seed_of(rp_params_slot(params), MIDDLE / 2), 2);
        rp_params_release(&params);
        put(client, 3, MIDDLE, 2 * shm + 2);
        ok(rp_subscriber_take(less, WAIT, &params, &err));
        assert_int_equal(rp_params_slot(params)->bf16, 0);
        assert_int_equal(seed_of(rp_params_slot(params), MIDDLE), 3);
        rp_params_release(&params);
        rp_subscriber_destroy(&plain);
        rp_subscriber_destroy(&less);
        rp_client_destroy(&client);
    }
    rp_publisher_destroy(&publisher, 0, NULL);
    free(data);
    free(half);
}

/* A value that does not fit is refused at its first part. */
CASE(too_large_a_value_is_refused)
{
    struct broker_process small = {0};
    broker_process_start(&small, "  - {name: replay, max_size: 10}\n", "memory_limit: 100MiB\n");
    rp_client *client = connect_to(&small);
    uint8_t *data = value_new(1, MIDDLE);
    rp_publisher *publisher = must(rp_publisher_new(client, SLOT, &err));
    ok(rp_publisher_put(publisher, data, MIDDLE, &err));
    assert_int_equal(rp_publisher_flush(publisher, WAIT, NULL, &err), RP_RESOURCE_EXHAUSTED);
    assert_has(err.text, "memory_limit");
    assert_true(parts_now(&(struct parts){.publisher = publisher}) <= WINDOW);
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
    Replay__ParamsGet ask = REPLAY__PARAMS_GET__INIT;
    char *name = testpeer_text(SLOT);
    ask.n_name = 1;
    ask.name = &name;
    ask.parts = true;
    ask.put = put;
    ask.part = part;
    TESTPEER_REQUEST(request, PARAMS_GET, params_get, &ask);
    const struct testpeer_answer *answer = testpeer_await(peer, testpeer_ask(peer, &request));
    assert_int_equal(answer->status, RP_OK);
    return answer->reply->params->slots[0]->parts->put;
}

/* A broker whose parameters may take 25 MiB, somebody who reads there part by part, and a publisher that has put a value. */
struct reading {
    struct broker_process small;
    rp_client *client;
    void *context;
    struct testpeer *reader;
    rp_publisher *publisher;
    uint8_t *data;
    uint64_t bytes;
};

static void reading_put(struct reading *self)
{
    ok(rp_publisher_put(self->publisher, self->data, self->bytes, &err));
    ok(rp_publisher_flush(self->publisher, WAIT, NULL, &err));
}

static void reading_begin(struct reading *self, uint64_t bytes)
{
    *self = (struct reading){.context = zmq_ctx_new(), .data = value_new(1, bytes), .bytes = bytes};
    broker_process_start(&self->small, "  - {name: replay, max_size: 10}\n", "memory_limit: 100MiB\n");
    self->client = connect_to(&self->small);
    self->reader = testpeer_connect(self->context, self->small.service);
    self->publisher = must(rp_publisher_new(self->client, SLOT, &err));
    reading_put(self);
}

/* The next put waits, and says why. */
static void reading_blocks(struct reading *self)
{
    ok(rp_publisher_put(self->publisher, self->data, self->bytes, &err));
    assert_int_equal(rp_publisher_flush(self->publisher, 1000, NULL, &err), RP_DEADLINE_EXCEEDED);
    assert_has(err.text, "being read");
}

static void reading_end(struct reading *self)
{
    testpeer_close(self->reader);
    zmq_ctx_term(self->context);
    rp_publisher_destroy(&self->publisher, 0, NULL);
    rp_client_destroy(&self->client);
    broker_process_fini(&self->small);
    free(self->data);
}

/* There is room for two versions: a publisher waits while somebody reads the first of them. */
CASE(a_publisher_waits_for_a_slow_reader)
{
    enum { LAST = 17 };
    struct reading r;
    uint64_t version;
    reading_begin(&r, 9 * MB);
    uint64_t first = ask_part(r.reader, 0, 0);
    ask_part(r.reader, first, 0);
    reading_put(&r);
    ask_part(r.reader, ask_part(r.reader, 0, 0), LAST);
    reading_blocks(&r);
    for (uint32_t part = 1; part <= LAST; part++)
        ask_part(r.reader, first, part);
    ok(rp_publisher_flush(r.publisher, WAIT, &version, &err));
    assert_int_equal(version, 3);
    reading_end(&r);
}

/* The slot's own value was asked for lately, so it stays for a while, and two do not fit. */
CASE(a_put_waits_where_two_values_have_no_room)
{
    struct reading r;
    reading_begin(&r, 14 * MB);
    ask_part(r.reader, 0, 0);
    reading_blocks(&r);
    reading_end(&r);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strncmp(argv[1], "--", 2) == 0)
        return child_main(argv[1], argv[2]);
    return test_run(NULL, NULL);
}
