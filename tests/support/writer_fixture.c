#include "tests/support/writer_fixture.h"

#include "proto/base/log.h"
#include "tests/support/test.h"

int writer_fixture_set_up(void **state)
{
    struct writer_fixture *self = calloc(1, sizeof *self);
    assert_non_null(self);
    log_set_level(LEVEL_OFF);
    fakepeer_start(&self->peer);
    self->client = rp_client_connect(self->peer.endpoint, NULL, 5000, &err);
    assert_non_null(self->client);
    *state = self;
    return 0;
}

int writer_fixture_tear_down(void **state)
{
    struct writer_fixture *self = *state;
    rp_writer_destroy(&self->writer, 0, NULL);
    rp_client_destroy(&self->client);
    fakepeer_stop(&self->peer);
    free(self);
    return 0;
}

void writer_fixture_open(struct writer_fixture *self, const rp_column *columns, uint32_t n,
                         const rp_writer_options *options)
{
    rp_writer_destroy(&self->writer, 5000, NULL);
    self->writer = must(rp_writer_new(self->client, columns, n, options, 5000, &err));
}
