/* The embedded broker: a thread beside its clients, over each of the transports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "broker/actor.h"
#include "replay/replay.h"

static bool read_config(const char *text, struct broker_config *config)
{
    struct schema_report *report = schema_report_new();
    bool ok = schema_read_text(&broker_schema, "test", text, config, report);
    if (!ok)
        print_error("%s", schema_report_text(report));
    schema_report_destroy(&report);
    return ok;
}

/* state: the endpoints' common part, with a place for a name. */
static void a_writer_and_a_sampler_meet_inside_one_process(void **state)
{
    char service[80], ingest[80], events[80], yaml[400];
    snprintf(service, sizeof service, (const char *)*state, "service");
    snprintf(ingest, sizeof ingest, (const char *)*state, "ingest");
    snprintf(events, sizeof events, (const char *)*state, "events");
    snprintf(
        yaml, sizeof yaml,
        "service: %s\ningest: %s\nevents: %s\nlog: {level: off}\ntables: [{name: replay, sampler: {kind: fifo}}]\n",
        service, ingest, events);
    struct broker_config config = {0};
    assert_true(read_config(yaml, &config));
    log_set_level(LEVEL_OFF);
    void *context = zmq_ctx_new();
    struct broker_actor_args args = {.config = &config, .context = context};
    zactor_t *actor = zactor_new(broker_actor, &args);
    assert_non_null(args.broker);

    rp_error err = {0};
    rp_client_options options = {.struct_size = sizeof options, .zmq_context = context};
    rp_client *client = rp_client_connect(args.broker->peers.service_endpoint, &options, 10000, &err);
    assert_non_null(client);
    const rp_column column = {.name = "n", .dtype = RP_DTYPE_INT64, .codec = RP_CODEC_AUTO};
    rp_writer *writer = rp_writer_new(client, &column, 1, NULL, 10000, &err);
    assert_non_null(writer);
    for (int64_t i = 0; i < 1000; i++) {
        const void *values[] = {&i};
        assert_int_equal(rp_writer_append(writer, values, 10000, &err), RP_OK);
        assert_int_equal(rp_writer_item_last(writer, "replay", 1.0, 1, 10000, NULL, &err), RP_OK);
    }
    assert_int_equal(rp_writer_flush(writer, 0, 10000, &err), RP_OK);

    rp_sampler *sampler = rp_sampler_new(client, "replay", NULL, &err);
    assert_non_null(sampler);
    rp_batch *batch = NULL;
    assert_int_equal(rp_sampler_next(sampler, &batch, 10000, &err), RP_OK);
    assert_int_equal(*(const int64_t *)rp_batch_find(batch, "n")->data, 0);
    rp_batch_release(&batch);
    rp_sampler_destroy(&sampler);
    assert_int_equal(rp_writer_destroy(&writer, 10000, &err), RP_OK);
    rp_client_destroy(&client);
    zactor_destroy(&actor);
    assert_true(atomic_load(&args.done));
    zmq_ctx_term(context);
    schema_free(&broker_schema, &config);
}

static void a_broker_that_can_not_start_says_why(void **state)
{
    (void)state;
    struct broker_config config = {0};
    assert_true(read_config("service: tcp://256.0.0.1:1\ntables: [{name: replay}]\n", &config));
    struct broker_actor_args args = {.config = &config};
    zactor_t *actor = zactor_new(broker_actor, &args);
    assert_null(args.broker);
    assert_non_null(strstr(args.err.text, "256.0.0.1"));
    zactor_destroy(&actor);
    schema_free(&broker_schema, &config);
}

int main(void)
{
    zsys_handler_set(NULL);
    char ipc[64];
    snprintf(ipc, sizeof ipc, "ipc:///tmp/replay-test-%d-%%s", (int)getpid());
    const struct CMUnitTest tests[] = {
        {"inproc", a_writer_and_a_sampler_meet_inside_one_process, NULL, NULL, "inproc://%s"},
        {"ipc", a_writer_and_a_sampler_meet_inside_one_process, NULL, NULL, ipc},
        {"tcp, any port", a_writer_and_a_sampler_meet_inside_one_process, NULL, NULL, "tcp://127.0.0.1:0"},
        cmocka_unit_test(a_broker_that_can_not_start_says_why),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    zsys_shutdown();
    return failed;
}
