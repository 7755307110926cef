/* A client and a writer at a scripted broker (fakepeer.h): set-up and tear-down of tests of one writer. */
#pragma once

#include "tests/support/fakepeer.h"
#include "tests/support/scoped.h"

struct writer_fixture {
    struct fakepeer peer;
    rp_client *client;
    rp_writer *writer; /* NULL until writer_fixture_open */
    rp_error err;
    int32_t step; /* for the test's own count */
};

/* Starts the broker and connects the client. */
void writer_fixture_start(struct writer_fixture *self);
void writer_fixture_stop(struct writer_fixture *self);
/* Opens a writer in place of the one before. Fails the test if that does not work. */
void writer_fixture_open(struct writer_fixture *self, const rp_column *columns, uint32_t n,
                         const rp_writer_options *options);
