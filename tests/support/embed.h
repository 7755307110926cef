/* A broker inside the test, on inproc endpoints, with a clock that stands still until it is moved: the broker depends only on
 * what the test does. */
#pragma once

#include "broker/broker.h"
#include "broker/session/session.h"
#include "tests/support/clock_manual.h"
#include "tests/support/test.h"

struct testpeer;

struct embed {
    struct broker_config config;
    struct clock_manual manual;
    void *context;
    struct broker *broker;
    struct testpeer *peers; /* closed by embed_stop */
    bool real_time;
    bool remote;   /* the endpoints are not inproc: messages take time */
    uint64_t due;  /* messages that peers have sent since the last embed_settle */
    uint64_t seen; /* messages that the broker had read at the last embed_settle */
    bool lossy;    /* messages may be lost with their sockets, or the broker may not read them */
};

/* tables: the YAML under "tables:"; more: further top-level keys (other endpoints, too), or NULL. Fails the test if the broker
 * refuses them. */
void embed_start(struct embed *self, const char *tables, const char *more);
/* The same with the system's clock, for tests that measure time. */
void embed_start_real(struct embed *self, const char *tables, const char *more);
/* Closes the peers, destroys the broker, and checks that every chunk and layout was released. */
void embed_stop(struct embed *self);

/* A test with a broker of its own: its body has `embed`, started, which is stopped after the test. */
struct embed_options {
    const char *tables, *more;
};
int embed_setup(void **state);
int embed_teardown(void **state);
#define EMBED_TEST(name, tables, more)                                                                                 \
    TEST_WITH(struct embed, embed, name, embed_setup, embed_teardown, &(struct embed_options){tables, more})

/* Closes the broker's sockets with all that is in their pipes, and binds the same endpoints again. */
void embed_rebind(struct embed *self);
/* Runs the broker's loop until it has nothing to do without more input. */
void embed_settle(struct embed *self);
/* Settles, advances the clock, and settles again. */
void embed_advance(struct embed *self, int64_t ms);

struct table *embed_table(struct embed *self, const char *name);
/* What embed_problems has read last; it frees the one before. */
extern struct broker_config embed_config;
/* Reads a configuration; returns its problems, "" if there are none. */
const char *embed_problems(const char *yaml);
/* Reads a configuration. False: copies the report's text to problems. */
bool embed_read_config(const char *yaml, struct broker_config *config, char *problems, size_t size);
