/* The recorder of spans: bounds, texts, and threads that add while others start and stop. */
#include "proto/base/trace.h"

#include <pthread.h>

#include "tests/support/test.h"

#define THREADS 4u
#define ADDS 20000u

TEST(nothing_is_kept_while_off)
{
    struct trace trace;
    struct trace_list list;
    trace_init(&trace);
    assert_int_equal(trace_now(&trace), 0);
    trace_add(&trace, "a", "core", &(struct trace_span){.start_ns = 1});
    assert_null(trace.list.spans);
    trace_stop(&trace, &list);
    assert_int_equal(list.n, 0);
    assert_int_equal(list.dropped, 0);
    trace_list_fini(&list);
    trace_fini(&trace);
}

TEST(a_full_record_keeps_the_first)
{
    struct trace trace;
    struct trace_list list;
    trace_init(&trace);
    assert_true(trace_start(&trace, 10));
    assert_true(trace_now(&trace) > 0);
    for (int64_t i = 0; i < 15; i++)
        trace_add(&trace, i % 2 ? "odd" : "even", "core", &(struct trace_span){.start_ns = i, .id = (uint64_t)i});
    trace_stop(&trace, &list);
    assert_int_equal(list.n, 10);
    assert_int_equal(list.dropped, 5);
    assert_int_equal(list.n_texts, 3);
    for (uint32_t i = 0; i < list.n; i++) {
        assert_int_equal(list.spans[i].id, i);
        assert_string_equal(list.texts[list.spans[i].name], i % 2 ? "odd" : "even");
        assert_string_equal(list.texts[list.spans[i].track], "core");
    }
    assert_true(trace_spans_are_sound(list.spans, list.n, list.n_texts));
    assert_false(trace_spans_are_sound(list.spans, list.n, 2));
    trace_list_fini(&list);
    trace_fini(&trace);
}

TEST(texts_are_bounded)
{
    struct trace trace;
    struct trace_list list;
    char name[200];
    trace_init(&trace);
    assert_true(trace_start(&trace, 1000));
    for (uint32_t i = 0; i < 400; i++) {
        snprintf(name, sizeof name, "%u %0150u", i, 0u);
        trace_add(&trace, name, "core", &(struct trace_span){.start_ns = 1});
    }
    trace_stop(&trace, &list);
    assert_int_equal(list.n_texts, TRACE_TEXTS);
    assert_int_equal(list.n, TRACE_TEXTS - 1);
    assert_int_equal(list.n + list.dropped, 400);
    for (uint32_t i = 0; i < list.n_texts; i++)
        assert_true(strlen(list.texts[i]) < TRACE_TEXT_BYTES);
    trace_list_fini(&list);
    trace_fini(&trace);
}

static void *add_many(void *arg)
{
    for (uint32_t i = 0; i < ADDS; i++)
        trace_add(arg, "work", NULL, &(struct trace_span){.start_ns = i});
    return NULL;
}

/* Under the sanitizers: no memory is used after a stop. */
TEST(threads_add_while_it_starts_and_stops)
{
    struct trace trace;
    struct trace_list list;
    pthread_t threads[THREADS];
    uint64_t seen = 0;
    trace_init(&trace);
    assert_true(trace_start(&trace, 1000));
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, &trace), 0);
    for (uint32_t i = 0; i < 200; i++) {
        trace_stop(&trace, &list);
        assert_true(trace_spans_are_sound(list.spans, list.n, list.n_texts));
        seen += list.n + list.dropped;
        trace_list_fini(&list);
        assert_true(trace_start(&trace, 1000));
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    trace_stop(&trace, &list);
    seen += list.n + list.dropped;
    assert_true(seen <= (uint64_t)THREADS * ADDS);
    trace_list_fini(&list);
    trace_fini(&trace);
}
