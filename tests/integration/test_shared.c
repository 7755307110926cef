/* Batches that a sampler reads from the memory of a broker on the same host, and chunks that a broker reads from the memory of a writer:
 * the same as by the socket, whatever happens to either meanwhile. Every byte of a frame follows from its number, so that a torn one
 * shows. A batch is larger than what a client may leave unread: batches wait for one another, and none fails. */
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/asked.h"
#include "tests/support/naive.h"
#include "tests/support/numbers.h"
#include "tests/support/shardbed.h"
#include "tests/support/tempdir.h"

#define WORDS 1024u /* of a frame */
#define STEPS 5u
#define BATCH 64u /* a batch has 1.3 MB of rows, and the broker lets 1 MiB be unread */
#define ITEMS 300u

static const char tables[] = "  - {name: t, max_size: 300, sampler: {kind: uniform}}\n";
static const char backlog[] = "peer_backlog_bytes: 1MiB\n";
static const uint32_t lengths[] = {1, 10, 20, 40}; /* of chunks */

/* The first word of a frame is its number. plain: the others are noise; otherwise they are alike, and compress. */
static uint32_t word(uint32_t number, uint32_t i, bool plain)
{
    uint64_t mixed = ((uint64_t)number * WORDS + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return plain && i ? (uint32_t)(mixed >> 32) : number;
}

/* A stream that goes on where it was. */
struct stream {
    rp_writer *writer;
    uint32_t next;
    bool plain;
};

static void stream_open(struct stream *self, rp_client *client, uint32_t chunk_length, bool plain)
{
    const rp_column column = {
        .name = "frame", .dtype = RP_DTYPE_UINT32, .codec = RP_CODEC_AUTO, .rank = 1, .shape = {WORDS}};
    *self = (struct stream){.plain = plain};
    self->writer = WRITER(client, &column, 1, .chunk_length = chunk_length, .keep_alive = chunk_length + STEPS);
}

static void stream_write(struct stream *self, const char *table, uint32_t items)
{
    for (uint32_t i = 0; i < items; self->next++) {
        uint32_t frame[WORDS];
        const void *values[] = {frame};
        for (uint32_t k = 0; k < WORDS; k++)
            frame[k] = word(self->next, k, self->plain);
        ok(rp_writer_append(self->writer, values, WAIT, &err));
        if (self->next + 1 < STEPS)
            continue;
        ok(rp_writer_item_last(self->writer, table, 1, STEPS, WAIT, NULL, &err));
        i++;
    }
}

static void stream_add(struct stream *self, const char *table, uint32_t items)
{
    stream_write(self, table, items);
    ok(rp_writer_flush(self->writer, 0, WAIT, &err));
}

/* Opens a stream and writes as many items as the table holds. */
static void stream_fill(struct stream *self, rp_client *client, uint32_t chunk_length, bool plain)
{
    stream_open(self, client, chunk_length, plain);
    stream_add(self, "t", ITEMS);
}

static void stream_close(struct stream *self)
{
    ok(rp_writer_destroy(&self->writer, WAIT, &err));
}

/* True if every item of the batch has STEPS whole frames in a row. */
static bool is_whole(const rp_batch *batch, bool plain)
{
    const rp_field_view *frame = rp_batch_find(batch, "frame");
    const uint32_t *at = frame->data;
    for (uint64_t i = 0; i < frame->shape[0]; i++) {
        uint32_t first = *at;
        for (uint32_t s = 0; s < STEPS; s++)
            for (uint32_t k = 0; k < WORDS; k++, at++)
                if (*at != word(first + s, k, plain))
                    return false;
    }
    return true;
}

static void take(rp_sampler *sampler, bool plain)
{
    SCOPED(rp_batch) batch = batch_next(sampler);
    assert_true(is_whole(batch, plain));
}

static rp_sampler *sampler_of(rp_client *client, uint32_t threads)
{
    return SAMPLER(client, "t", .batch_size = BATCH, .in_flight = 8, .gather_threads = threads);
}

/* Two samplers at once, one of which gathers with several threads, and two after them: what the first have asked for is still under
 * way then. */
static void check_samplers(const char *service, uint32_t chunk_length, bool plain, uint32_t shards)
{
    SCOPED(rp_client) client = CONNECT(service);
    struct stream stream;
    stream_fill(&stream, client, chunk_length, plain);
    for (uint32_t again = 0; again < 2; again++) {
        rp_sampler *samplers[] = {sampler_of(client, 1), sampler_of(client, 3)};
        for (uint32_t i = 0; i < 12; i++)
            take(samplers[i % 2], plain);
        for (uint32_t i = 0; i < 2; i++) {
            rp_sampler_stats stats = stats_of(samplers[i]);
            assert_int_equal(stats.shared, shards);
            assert_true(plain && shards ? stats.shared_bytes > 0 : shards || stats.shared_bytes == 0);
            assert_int_equal(stats.overtaken, 0);
            rp_sampler_destroy(&samplers[i]);
        }
    }
    stream_close(&stream);
}

TEST(the_same_batches_as_by_the_socket)
{
    for (uint32_t i = 0; i < 16; i++) {
        bool off = i / 8;
        struct broker_process broker;
        broker_process_start(&broker, tables, backlog);
        setenv("REPLAY_SHM", off ? "0" : "1", 1);
        check_samplers(broker.service, lengths[i % 4], i / 4 % 2, off ? 0 : 1);
        unsetenv("REPLAY_SHM");
        broker_process_fini(&broker);
    }
}

FIXTURE(struct broker_process, (void), broker_process_fini)

CASE(a_broker_that_shares_nothing)
{
    broker_process_start(f, tables, "shared_memory: false\n");
    check_samplers(f->service, 10, true, 0);
}

TEST(each_shard_shares_its_memory)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct shardbed bed;
        shardbed_start(&bed, 2, tables, backlog);
        check_samplers(bed.services[0], lengths[i], i % 2, 2);
        shardbed_stop(&bed);
    }
}

/* The memory of a new broker takes the place of that of the old one. */
CASE(a_broker_is_killed_and_started_again)
{
    broker_process_start(f, tables, NULL);
    SCOPED(rp_client) client = CONNECT(f->service);
    SCOPED(rp_sampler) sampler = sampler_of(client, 1);
    uint64_t before = 0;
    for (uint32_t round = 0; round < 3; round++) {
        struct stream stream;
        stream_fill(&stream, client, 10, true);
        stream_close(&stream);
        for (uint32_t i = 0; i < 20; i++)
            take(sampler, true);
        rp_sampler_stats stats = stats_of(sampler);
        assert_int_equal(stats.shared, 1);
        assert_true(stats.shared_bytes > before);
        before = stats.shared_bytes;
        broker_process_stop(f, SIGKILL);
        broker_process_again(f, NULL);
    }
}

/* A reply that has come and was not read is given up with the sampler: an answer that is due at another broker keeps what is left of it
 * until that connection ends, when the reply's own is gone. */
TEST(a_sampler_leaves_nothing_at_a_client_that_goes_first)
{
    struct broker_process brokers[2];
    rp_client *clients[2];
    rp_batch *batch;
    for (uint32_t i = 0; i < 2; i++) {
        struct stream stream;
        broker_process_start(&brokers[i], tables, NULL);
        clients[i] = CONNECT(brokers[i].service);
        stream_fill(&stream, clients[i], 10, true);
        stream_close(&stream);
    }
    const rp_source sources[] = {{clients[0], "t", 0.5}, {clients[1], "t", 0.5}};
    rp_sampler *sampler =
        must(rp_sampler_new_mixed(sources, 2, OPTIONS(rp_sampler, .batch_size = BATCH, .on_demand = 1), &err));
    take(sampler, true);
    for (uint32_t i = 0; i < 2; i++)
        kill(brokers[i].pid, SIGSTOP);
    rp_wait_set(stop_wait, NULL);
    assert_int_equal(rp_sampler_next(sampler, &batch, -1, &err), RP_CANCELLED);
    rp_wait_set(NULL, NULL);
    kill(brokers[0].pid, SIGCONT);
    int64_t value;
    ok(rp_counter_read(clients[0], "after", WAIT, &value, &err)); /* its answer comes after that of the sample */
    rp_sampler_destroy(&sampler);
    rp_client_destroy(&clients[0]);
    rp_client_destroy(&clients[1]);
    kill(brokers[1].pid, SIGCONT);
    for (uint32_t i = 0; i < 2; i++)
        broker_process_fini(&brokers[i]);
}

/* ---- a sampler that is stopped, and one that is killed ---- */

/* What a sampler in another process has to say. */
struct reader {
    pid_t pid;
    uint64_t batches, overtaken, torn; /* atomic */
};

/* Never returns: the library has no thread here, so a client may be made. A check that fails would end the parent's fixture. */
static void read_for_ever(struct reader *self, const char *service)
{
    rp_client *client = rp_client_connect(service, NULL, WAIT, &err);
    const rp_sampler_options *options = OPTIONS(rp_sampler, .batch_size = BATCH / 2, .in_flight = 16);
    rp_sampler *sampler = client ? rp_sampler_new(client, "t", options, &err) : NULL;
    if (!sampler)
        _exit(1);
    rp_sampler_stats stats = {.struct_size = sizeof stats};
    rp_batch *batch = NULL;
    while (rp_sampler_next(sampler, &batch, WAIT, &err) == RP_OK) {
        __atomic_add_fetch(&self->torn, !is_whole(batch, true), __ATOMIC_RELAXED);
        rp_batch_release(&batch);
        rp_sampler_get_stats(sampler, &stats);
        __atomic_store_n(&self->overtaken, stats.overtaken, __ATOMIC_RELAXED);
        __atomic_add_fetch(&self->batches, 1, __ATOMIC_RELEASE);
    }
    _exit(1); /* err says why, for who looks with a debugger */
}

static struct reader *reader_start(const char *service)
{
    struct reader *self = mmap(NULL, sizeof *self, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(self != MAP_FAILED);
    pid_t pid = fork();
    if (pid == 0)
        read_for_ever(self, service);
    assert_true(pid > 0);
    self->pid = pid;
    return self;
}

static void await_batches(struct reader *self, uint64_t more)
{
    uint64_t until = __atomic_load_n(&self->batches, __ATOMIC_RELAXED) + more;
    wait_until(__atomic_load_n(&self->batches, __ATOMIC_ACQUIRE) >= until);
}

static void reader_end(struct reader *self)
{
    kill(self->pid, SIGKILL);
    assert_int_equal(waitpid(self->pid, NULL, 0), self->pid);
    munmap(self, sizeof *self);
}

/* Lets the broker use the memory of all that a reader was given for other data: new items, and other samples that take the place of
 * its own. */
static void overwrite_all(struct stream *stream, rp_sampler *other)
{
    for (uint32_t i = 0; i < 4; i++) {
        stream_add(stream, "t", ITEMS);
        for (uint32_t k = 0; k < 4; k++)
            take(other, true);
    }
}

CASE(a_stopped_sampler_loses_its_loan_and_reads_nothing_torn)
{
    /* 1 MiB of samples is kept: fewer than one reader asks for. */
    broker_process_start(f, tables, "memory_limit: 16MiB\n");
    struct reader *reader = reader_start(f->service); /* first: a client here has threads */
    SCOPED(rp_client) client = CONNECT(f->service);
    struct stream stream;
    stream_fill(&stream, client, 4, true);
    rp_sampler *other = sampler_of(client, 1);
    struct rng rng = rng_of(7);
    for (uint32_t round = 0; round < 100 && (round < 4 || !reader->overtaken); round++) {
        await_batches(reader, 2);
        usleep((useconds_t)rng_below(&rng, 3000)); /* anywhere in a read */
        kill(reader->pid, SIGSTOP);
        overwrite_all(&stream, other);
        kill(reader->pid, SIGCONT);
        await_batches(reader, 40); /* those that it was given before are among them */
        assert_int_equal(reader->torn, 0);
    }
    print_message("%llu batches, %llu overtaken\n", (unsigned long long)reader->batches,
                  (unsigned long long)reader->overtaken);
    assert_true(reader->overtaken > 0);
    reader_end(reader);
    rp_sampler_destroy(&other);
    stream_close(&stream);
}

CASE(samplers_that_are_killed_harm_nobody)
{
    broker_process_start(f, tables, "memory_limit: 64MiB\n");
    struct reader *readers[4];
    for (uint32_t i = 0; i < 4; i++)
        readers[i] = reader_start(f->service);
    SCOPED(rp_client) client = CONNECT(f->service);
    struct stream stream;
    stream_fill(&stream, client, 10, true);
    rp_sampler *other = sampler_of(client, 1);
    for (uint32_t i = 0; i < 4; i++) {
        await_batches(readers[i], 3);
        assert_int_equal(readers[i]->torn, 0);
        reader_end(readers[i]);
        overwrite_all(&stream, other);
    }
    rp_sampler_destroy(&other);
    stream_close(&stream);
}

/* ---- writers ---- */

TEST(the_broker_says_who_writes_so)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct broker_process broker;
        struct stream stream;
        bool shares = i == 0 || i == 3;
        broker_process_start(&broker, tables, i == 1 ? "shared_memory: false\n" : NULL);
        if (i == 2)
            setenv("REPLAY_SHM", "0", 1);
        rp_client *client = CONNECT(broker.service);
        stream_fill(&stream, client, i == 3 ? 5 : 10, true); /* half as long: too small for frames of their own */
        assert_int_equal(asked_number(client, "server.shared_clients"), shares);
        /* 1.2 MB of chunks: in frames, or beside them. */
        assert_true(shares ? asked_number(client, "server.bytes_in") < 200000
                           : asked_number(client, "server.bytes_in") > 1000000);
        stream_close(&stream);
        assert_int_equal(asked_number(client, "server.shared_clients"), 0);
        rp_client_destroy(&client);
        unsetenv("REPLAY_SHM");
        broker_process_fini(&broker);
    }
}

/* Every item is in the table once, and whole: the writer's messages say again where its chunks lie. */
TEST(a_broker_is_killed_while_it_reads_a_writer, tempdir_enter, tempdir_leave)
{
    static const char large[] = "  - {name: t, max_size: 100000, sampler: {kind: uniform}}\n";
    enum { ROUNDS = 4 };
    struct broker_process broker;
    struct stream stream;
    broker_process_start(&broker, large, textf("folder: %s/state\njournal: 1s\n", tempdir));
    rp_client *client = CONNECT(broker.service);
    stream_open(&stream, client, 10, true);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        stream_write(&stream, "t", ITEMS);
        if (round % 2)
            ok(rp_writer_flush(stream.writer, ITEMS / 2, WAIT, &err));
        broker_process_stop(&broker, SIGKILL);
        stream_write(&stream, "t", ITEMS);
        broker_process_again(&broker, NULL);
    }
    ok(rp_writer_flush(stream.writer, 0, WAIT, &err));
    assert_int_equal(asked_table(client, "t", "size"), 2 * ROUNDS * ITEMS);
    assert_int_equal(asked_number(client, "server.shared_clients"), 1);
    rp_sampler *sampler = sampler_of(client, 1);
    for (uint32_t i = 0; i < 100; i++)
        take(sampler, true);
    rp_sampler_destroy(&sampler);
    stream_close(&stream);
    rp_client_destroy(&client);
    broker_process_fini(&broker);
}

/* More bytes than may be in flight in shared memory were never sent: they hold nobody up. */
CASE(a_broker_comes_back_without_a_table)
{
    enum { MANY = 10000 }; /* 40 MB */
    struct stream stream;
    broker_process_start(f, "  - {name: t, max_size: 300}\n  - {name: u, max_size: 300}\n", NULL);
    SCOPED(rp_client) client = CONNECT(f->service);
    stream_open(&stream, client, 10, true);
    stream_add(&stream, "u", ITEMS);
    broker_process_stop(f, SIGTERM);
    wait_until(rp_client_get_state(client) == RP_CLIENT_CONNECTING); /* items sent to the old one would be in doubt */
    stream_write(&stream, "t", MANY);
    broker_process_again(f, "  - {name: u, max_size: 300}\n");
    assert_int_equal(rp_writer_flush(stream.writer, 0, WAIT, &err), RP_NOT_FOUND);
    stream_add(&stream, "u", ITEMS);
    stream_close(&stream);
}

static void write_for_ever(const char *service)
{
    rp_client *client = CONNECT(service);
    struct stream stream;
    stream_open(&stream, client, 10, true);
    for (;;)
        stream_write(&stream, "t", ITEMS);
}

CASE(writers_that_are_killed_leave_nothing_torn)
{
    broker_process_start(f, tables, "session: {expiry: 1s}\n");
    pid_t writers[3];
    for (uint32_t i = 0; i < 3; i++) { /* first: a client here has threads */
        writers[i] = fork();
        if (writers[i] == 0)
            write_for_ever(f->service);
        assert_true(writers[i] > 0);
    }
    SCOPED(rp_client) client = CONNECT(f->service);
    SCOPED(rp_sampler) sampler = sampler_of(client, 1);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t k = 0; k < 20; k++)
            take(sampler, true);
        kill(writers[i], SIGKILL);
        assert_int_equal(waitpid(writers[i], NULL, 0), writers[i]);
    }
    for (uint32_t k = 0; k < 20; k++)
        take(sampler, true);
    wait_until(asked_number(client, "server.shared_clients") == 1); /* the sampler */
}
