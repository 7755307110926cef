/* replaybus._core: libreplay for Python, through the limited API of Python 3.11.
 *
 * The extension owns handles of libreplay; the rules that Python adds to them are in agent/python/base:
 *   client.c    Client: a connection, and questions with one answer; server.c: Server
 *   writer.c    Writer, Selection; rows.c: Transitions, and many steps in one call; nest.c: the values of a nested step
 *   sampler.c   Sampler; batch.c: Batch; pool.c: Pool, the memory of batches
 *   exchange.c  Publisher, Subscriber, Updater, Reduce
 *   weights.c   blocks of named tensors
 * Everything else (structures, servers, text) is Python. */
#pragma once

#include "agent/python/base/base.h"

/* ---- nest.c */

struct nest;
/* Reads a plan: None for a value, (keys, plans) for a mapping, (None, plans) for a sequence, (class, plans) for a named tuple. NULL with
 * an exception. */
struct nest *nest_new(PyObject *plan);
void nest_destroy(struct nest **nest);
uint32_t nest_leaves(const struct nest *nest);
/* Writes new references to the values of a step. False with an exception set: its structure is another. */
bool nest_flatten(const struct nest *nest, PyObject *step, PyObject **leaves);
void nest_release(PyObject **leaves, uint32_t n);

/* ---- client.c */

/* A client that several objects share: destroyed after the last of them, in whatever order they close. */
struct conn {
    rp_client *client;
    unsigned refs; /* guarded by the GIL */
};

/* The client of a Client object for a new user of it. NULL with an exception set. */
struct conn *client_share(PyObject *client);
void conn_drop(struct conn **conn);
/* (version, data, age_ns, bf16); takes the params. The data is bytes, or a read-only memoryview of a large value, which keeps it. */
PyObject *param_row(rp_params **params);

/* ---- batch.c */

/* The Memory of a batch. Takes the batch, also when it fails. pool: what its memory comes from; may be NULL. */
PyObject *batch_wrap(rp_batch *batch, PyObject *pool);

/* ---- pool.c */

/* Lets a sampler take its memory from a Pool, which must outlive the sampler and its batches. None: changes nothing. False with an
 * exception set: it is no Pool. */
bool pool_memory(PyObject *pool, rp_memory *out);

/* ---- functions and types of the module */

extern const struct core_type client_core, writer_core, selection_core, transitions_core, sampler_core, memory_core,
    batch_core, pool_core, publisher_core, subscriber_core, updater_core, reduce_core, server_core;
/* rows.c: append_rows(writers, block, step, table, steps, priorities, done, timeout, sequence=None) */
PyObject *rows_append(PyObject *module, PyObject *args);
PyObject *rows_check_sequence(PyObject *module, PyObject *args);
/* weights.c: weights_encode({name: array}): a block; weights_list(block): [(name, dtype, shape, offset)] */
PyObject *weights_from_arrays(PyObject *module, PyObject *tensors);
PyObject *weights_entries(PyObject *module, PyObject *block);
PyObject *weights_half(PyObject *module, PyObject *block);
