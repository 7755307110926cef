/* The embedded broker: a thread beside its clients, over each of the transports. */
#include <zmq.h>

#include "replay/replay.h"
#include "replay/server.h"
#include "tests/support/test.h"

/* endpoints: their common part, with a place for a name. */
static void a_writer_and_a_sampler_meet(const char *endpoints)
{
    char service[80], ingest[80], events[80], yaml[400];
    snprintf(service, sizeof service, endpoints, "service");
    snprintf(ingest, sizeof ingest, endpoints, "ingest");
    snprintf(events, sizeof events, endpoints, "events");
    snprintf(
        yaml, sizeof yaml,
        "service: %s\ningest: %s\nevents: %s\nlog: {level: off}\ntables: [{name: replay, sampler: {kind: fifo}}]\n",
        service, ingest, events);
    void *context = zmq_ctx_new();
    rp_server *server = must(rp_server_start(yaml, context, &err));

    rp_client_options options = {.struct_size = sizeof options, .zmq_context = context};
    rp_client *client = must(rp_client_connect(rp_server_endpoint(server), &options, 10000, &err));
    const rp_column column = {.name = "n", .dtype = RP_DTYPE_INT64, .codec = RP_CODEC_AUTO};
    rp_writer *writer = must(rp_writer_new(client, &column, 1, NULL, 10000, &err));
    for (int64_t i = 0; i < 1000; i++) {
        const void *values[] = {&i};
        assert_int_equal(rp_writer_append(writer, values, 10000, &err), RP_OK);
        assert_int_equal(rp_writer_item_last(writer, "replay", 1.0, 1, 10000, NULL, &err), RP_OK);
    }
    assert_int_equal(rp_writer_flush(writer, 0, 10000, &err), RP_OK);

    rp_sampler *sampler = must(rp_sampler_new(client, "replay", NULL, &err));
    rp_batch *batch = NULL;
    assert_int_equal(rp_sampler_next(sampler, &batch, 10000, &err), RP_OK);
    assert_int_equal(*(const int64_t *)rp_batch_find(batch, "n")->data, 0);
    rp_batch_release(&batch);
    rp_sampler_destroy(&sampler);
    assert_int_equal(rp_writer_destroy(&writer, 10000, &err), RP_OK);
    rp_client_destroy(&client);
    rp_server_stop(&server);
    assert_null(server);
    zmq_ctx_term(context); /* returns: the broker has closed its sockets */
}

TEST(over_each_transport)
{
    char ipc[64];
    snprintf(ipc, sizeof ipc, "ipc:///tmp/replay-test-%d-%%s", (int)getpid());
    a_writer_and_a_sampler_meet("inproc://%s");
    a_writer_and_a_sampler_meet(ipc);
    a_writer_and_a_sampler_meet("tcp://127.0.0.1:0");
}

TEST(a_broker_that_cannot_start_says_why)
{
    assert_null(rp_server_start("service: tcp://256.0.0.1:1\ntables: [{name: replay}]\n", NULL, &err));
    assert_int_not_equal(err.status, RP_OK);
    assert_non_null(strstr(err.text, "256.0.0.1"));
}
