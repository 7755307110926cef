/* Snapshots that one thread makes and another takes. */

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "broker/loop/snapshot.h"
#include "tests/support/test.h"

#define ROUNDS 2000u

static atomic_bool done;

/* The core thread: sleeps until it is woken, and makes what is wanted. */
static void *maker(void *arg)
{
    struct exchange *exchange = arg;
    uint64_t made = 0;
    while (!atomic_load(&done)) {
        struct pollfd fd = {exchange->wake_fd, POLLIN, 0};
        uint64_t count;
        poll(&fd, 1, 1000);
        ssize_t ignored = read(exchange->wake_fd, &count, sizeof count);
        (void)ignored;
        unsigned parts = exchange_wanted(exchange);
        if (!parts)
            continue;
        struct snapshot *snapshot = snapshot_new();
        assert_non_null(snapshot);
        snapshot->parts = parts;
        snapshot->made_ns = (int64_t)++made;
        snapshot->info.server = arena_take(&snapshot->arena, 1, sizeof *snapshot->info.server);
        snapshot->info.server->service = arena_text(&snapshot->arena, "tcp://127.0.0.1:7600");
        exchange_give(exchange, snapshot);
    }
    return NULL;
}

TEST(every_question_is_answered)
{
    struct exchange exchange;
    pthread_t thread;
    int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    exchange_init(&exchange, wake_fd);
    assert_true(exchange_open(&exchange));
    assert_int_equal(pthread_create(&thread, NULL, maker, &exchange), 0);
    int64_t last = 0;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        unsigned parts = 1 + i % 7;
        exchange_ask(&exchange, parts);
        struct pollfd fd = {exchange.made_fd, POLLIN, 0};
        assert_int_equal(poll(&fd, 1, WAIT), 1);
        struct snapshot *snapshot = exchange_take(&exchange);
        assert_non_null(snapshot);
        assert_int_equal(snapshot->parts, parts);
        assert_true(snapshot->made_ns == last + 1);
        assert_string_equal(snapshot->info.server->service, "tcp://127.0.0.1:7600");
        last = snapshot->made_ns;
        snapshot_destroy(&snapshot);
    }
    assert_null(exchange_take(&exchange));
    atomic_store(&done, true);
    exchange_ask(&exchange, 1);
    pthread_join(thread, NULL);
    exchange_fini(&exchange);
    close(wake_fd);
}

TEST(a_snapshot_that_nobody_took_is_replaced)
{
    struct exchange exchange;
    exchange_init(&exchange, -1);
    assert_true(exchange_open(&exchange));
    for (int64_t i = 1; i <= 3; i++) {
        struct snapshot *snapshot = snapshot_new();
        snapshot->made_ns = i;
        exchange_give(&exchange, snapshot);
    }
    struct snapshot *newest = exchange_take(&exchange);
    assert_true(newest->made_ns == 3);
    snapshot_destroy(&newest);
    exchange_give(&exchange, snapshot_new()); /* freed with the exchange */
    exchange_fini(&exchange);
}

TEST(memory_lasts_as_long_as_the_snapshot)
{
    struct snapshot *snapshot = snapshot_new();
    const char *texts[3000];
    for (uint32_t i = 0; i < 3000; i++) {
        char text[200];
        memset(text, 'a' + (int)(i % 26), sizeof text);
        text[i % 199] = '\0';
        texts[i] = arena_text(&snapshot->arena, text);
        uint64_t *zeros = arena_take(&snapshot->arena, i % 50 + 1, sizeof *zeros);
        assert_int_equal((uintptr_t)zeros % _Alignof(max_align_t), 0);
        for (uint32_t k = 0; k <= i % 50; k++) {
            assert_true(zeros[k] == 0);
            zeros[k] = UINT64_MAX;
        }
    }
    char *large = arena_take(&snapshot->arena, 300000, 1);
    memset(large, 1, 300000);
    for (uint32_t i = 0; i < 3000; i++) {
        assert_int_equal(strlen(texts[i]), i % 199);
        assert_int_equal(strspn(texts[i], (char[]){(char)('a' + (int)(i % 26)), 0}), i % 199);
    }
    snapshot_destroy(&snapshot);
    assert_null(snapshot);
}
