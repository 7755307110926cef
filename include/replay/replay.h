/* What most programs need of the client library. Apart from it stand server.h (a broker inside this process), collective.h (shared
 * counters, sums over learners), trace.h, and for plug-ins env.h and plugin.h.
 *
 * Actors append steps to a stream and create items over slices of it, each in a table of the broker (writer.h). Learners take batches
 * of items, which the table's selector draws, and set their priorities (sampler.h). Parameters go back to the actors in named slots
 * (params.h). The limiter of a table keeps the ratio of samples to inserts: calls wait while it is off balance.
 *
 * - A call returns RP_OK or an error code (error.h); a call that gives an object returns NULL instead. The reason is in the rp_error,
 *   as a sentence. Every rp_error may be NULL.
 * - timeout_ms: negative waits without limit, 0 does not wait. A call that ends with RP_DEADLINE_EXCEEDED can be repeated.
 * - In a struct with struct_size, set that to the sizeof of the struct, and what you do not choose to 0, which is its default.
 * - Destroying takes the address of a pointer and nulls it; NULL is left alone. Writers, samplers and all other objects go before
 *   their client.
 * - Several threads may use one client; any other object may be used by one thread at a time.
 *
 * The headers need C11 or C++.
 *
 * A program with both sides and a broker of its own (cc program.c $(pkg-config --cflags --libs replayserver)). With a broker
 * elsewhere, it connects to "tcp://HOST:7600" and needs neither server.h nor more than the library replay.
 *
 *     #include <stdio.h>
 *     #include "replay/replay.h"
 *     #include "replay/server.h"
 *
 *     static rp_status act(rp_client *client, rp_error *err)
 *     {
 *         const rp_column columns[] = {{.name = "observation", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {4}},
 *                                      {.name = "reward", .dtype = RP_DTYPE_FLOAT32}};
 *         const rp_writer_options options = {.struct_size = sizeof options, .keep_alive = 2};
 *         rp_writer *writer = rp_writer_new(client, columns, 2, &options, 5000, err);
 *         rp_status status = writer ? RP_OK : (rp_status)err->status;
 *         for (int step = 0; status == RP_OK && step < 100; step++) {
 *             float observation[4] = {(float)step}, reward = 1;
 *             const void *row[] = {observation, &reward};
 *             status = rp_writer_append(writer, row, -1, err);
 *             if (status == RP_OK && step > 0)
 *                 status = rp_writer_item_last(writer, "replay", 1.0, 2, -1, NULL, err);
 *         }
 *         rp_status end = rp_writer_destroy(&writer, 5000, status == RP_OK ? err : NULL);
 *         return status != RP_OK ? status : end;
 *     }
 *
 *     static rp_status learn(rp_client *client, rp_error *err)
 *     {
 *         const rp_sampler_options options = {.struct_size = sizeof options, .batch_size = 32};
 *         rp_sampler *sampler = rp_sampler_new(client, "replay", &options, err);
 *         rp_batch *batch = NULL;
 *         rp_status status = sampler ? rp_sampler_next(sampler, &batch, 5000, err) : (rp_status)err->status;
 *         if (status == RP_OK) {
 *             rp_batch_arrays items = {.struct_size = sizeof items};
 *             rp_batch_get_arrays(batch, &items);
 *             const float *observations = rp_batch_find(batch, "observation")->data;
 *             double priorities[32];
 *             for (uint32_t i = 0; i < items.n; i++)
 *                 priorities[i] = 1.0 + (double)observations[i * 2 * 4];
 *             status = rp_priorities_update(client, "replay", items.key, priorities, items.n, 5000, NULL, err);
 *         }
 *         rp_batch_release(&batch);
 *         rp_sampler_destroy(&sampler);
 *         return status;
 *     }
 *
 *     int main(void)
 *     {
 *         rp_error err = {0};
 *         rp_server *server = rp_server_start(NULL, NULL, &err);
 *         rp_client *client = server ? rp_client_connect(rp_server_endpoint(server), NULL, 5000, &err) : NULL;
 *         int ok = client && act(client, &err) == RP_OK && learn(client, &err) == RP_OK;
 *         printf("%s %s\n", rp_version(), ok ? "learned" : err.text);
 *         rp_client_destroy(&client);
 *         rp_server_stop(&server);
 *         return !ok;
 *     }
 */
#ifndef REPLAY_REPLAY_H
#define REPLAY_REPLAY_H

#include "replay/admin.h"
#include "replay/client.h"
#include "replay/error.h"
#include "replay/log.h"
#include "replay/params.h"
#include "replay/sampler.h"
#include "replay/types.h"
#include "replay/writer.h"

#endif
