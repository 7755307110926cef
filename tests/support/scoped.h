/* Objects of the client library that end with their block: SCOPED(rp_sampler) sampler = ...; the last one that was
 * declared ends first. An end that the test looks at is called in its place, and then nothing is left to do here.
 * Where a test fails, its objects stay. */
#pragma once

#include "replay/collective.h" // IWYU pragma: export
#include "replay/replay.h"     // IWYU pragma: export
#include "tests/support/test.h"

#define SCOPED(type) __attribute__((cleanup(end_##type))) type *
/* Says how objects of a type end. */
#define ENDS(type, call)                                                                                               \
    static inline void end_##type(type **self)                                                                         \
    {                                                                                                                  \
        call;                                                                                                          \
    }

/* Options of an object with these members: rp_sampler_new(client, "t", OPTIONS(rp_sampler, .batch_size = 4), &err). */
#define OPTIONS(type, ...) (&(type##_options){.struct_size = sizeof(type##_options), __VA_ARGS__})
/* Objects with such options; the test fails if they cannot be made. */
#define CONNECT(service, ...) must(rp_client_connect(service, OPTIONS(rp_client, __VA_ARGS__), WAIT, &err))
#define SAMPLER(client, table, ...) must(rp_sampler_new(client, table, OPTIONS(rp_sampler, __VA_ARGS__), &err))
#define WRITER(client, columns, n, ...)                                                                                \
    must(rp_writer_new(client, columns, n, OPTIONS(rp_writer, __VA_ARGS__), WAIT, &err))

ENDS(rp_client, rp_client_destroy(self))
ENDS(rp_writer, ok(rp_writer_destroy(self, WAIT, &err)))
ENDS(rp_sampler, rp_sampler_destroy(self))
ENDS(rp_batch, rp_batch_release(self))
ENDS(rp_updater, ok(rp_updater_destroy(self, WAIT, &err)))
ENDS(rp_publisher, (void)rp_publisher_destroy(self, 0, NULL))
ENDS(rp_subscriber, rp_subscriber_destroy(self))
ENDS(rp_params, rp_params_release(self))
ENDS(rp_info, rp_info_free(self))

/* For rp_wait_set: ends a wait when it is first looked at. Counts the looks in an int; NULL: it does not. */
static inline int stop_wait(void *looks)
{
    if (looks)
        ++*(int *)looks;
    return 1;
}
