/* The public embedded broker: a configuration, a broker, and the thread that runs it. */
#include "replay/server.h"

#include <czmq.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "broker/broker.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/forks.h"
#include "proto/base/need.h"

struct rp_server {
    struct broker_config config;
    struct broker *broker;
    char *endpoint; /* of service, as a client in this process connects to it */
    pthread_t thread;
    uint32_t forks; /* of this process when the broker was started */
};

static const char free_ports[] = "service: tcp://127.0.0.1:0\n"
                                 "ingest: tcp://127.0.0.1:0\n"
                                 "events: tcp://127.0.0.1:0\n";

static void *serve(void *server)
{
    broker_run(((rp_server *)server)->broker);
    return NULL;
}

static rp_status read_config(rp_server *self, const char *yaml, rp_error *err)
{
    char text[sizeof free_ports + 4096];
    if (!yaml) {
        snprintf(text, sizeof text, "%s%s", free_ports, broker_default_yaml);
        yaml = text;
    }
    struct schema_report *report = schema_report_new();
    rp_status status = RP_OK;
    if (!schema_read_text(&broker_schema, "configuration", yaml, &self->config, report))
        status = err_set(err, RP_INVALID_ARGUMENT, "%s", schema_report_text(report));
    schema_report_destroy(&report);
    if (status == RP_OK && self->config.http[0])
        return err_set(err, RP_UNSUPPORTED, "an embedded broker serves no http: leave it out, or run replay-broker");
    if (status == RP_OK && config_shards(&self->config) > 1 && !config_shard_endpoint(&self->config, 0))
        return err_set(err, RP_UNSUPPORTED,
                       "an embedded broker is one process: list the endpoints of its shards, or run replay-broker");
    return status == RP_OK ? config_become_shard(&self->config, err) : status;
}

static rp_status start(rp_server *self, void *zmq_context, rp_error *err)
{
    self->broker = broker_new(&self->config, clock_system(), zmq_context, err);
    if (!self->broker)
        return RP_INTERNAL; /* err says why */
    self->endpoint = endpoint_local(self->broker->peers.service_endpoint);
    int failed = pthread_create(&self->thread, NULL, serve, self);
    return failed ? err_set(err, RP_NO_MEMORY, "no thread for the broker: %s", strerror(failed)) : RP_OK;
}

/* Signals are for the threads of the host program: those of the broker inherit a mask that blocks all of them. */
static rp_status start_without_signals(rp_server *self, void *zmq_context, rp_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rp_status status = start(self, zmq_context, err);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void destroy(rp_server *self)
{
    broker_destroy(&self->broker);
    schema_free(&broker_schema, &self->config);
    free(self->endpoint);
    free(self);
}

rp_server *rp_server_start(const char *yaml, void *zmq_context, rp_error *err)
{
    if (!forks_watch())
        return err_null(err, RP_NO_MEMORY, "no memory for a broker");
    rp_server *self = need_alloc(sizeof *self);
    self->forks = forks_count();
    zsys_handler_set(NULL); /* czmq would catch SIGINT and SIGTERM */
    if (read_config(self, yaml, err) == RP_OK && start_without_signals(self, zmq_context, err) == RP_OK) {
        if (err) /* a fresh folder had nothing to load, which is no mistake */
            *err = (rp_error){0};
        return self;
    }
    destroy(self);
    return NULL;
}

const char *rp_server_endpoint(const rp_server *self)
{
    return self->endpoint;
}

void rp_server_stop(rp_server **at)
{
    rp_server *self = at ? *at : NULL;
    if (!self)
        return;
    *at = NULL;
    if (self->forks != forks_count()) /* a parent's broker: its threads are not in this process */
        return;
    broker_stop(self->broker);
    pthread_join(self->thread, NULL);
    destroy(self);
}
