#include "tests/support/writer_fixture.h"

void writer_fixture_start(struct writer_fixture *self)
{
    fakepeer_start(&self->peer);
    self->client = must(rp_client_connect(self->peer.endpoint, NULL, 5000, &err));
}

void writer_fixture_stop(struct writer_fixture *self)
{
    rp_writer_destroy(&self->writer, 0, NULL);
    rp_client_destroy(&self->client);
    fakepeer_stop(&self->peer);
}

void writer_fixture_open(struct writer_fixture *self, const rp_column *columns, uint32_t n,
                         const rp_writer_options *options)
{
    rp_writer_destroy(&self->writer, 5000, NULL);
    self->writer = must(rp_writer_new(self->client, columns, n, options, 5000, &err));
}
