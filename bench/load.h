/* Load generators. "Thin" ones encode their frames before the measurement, patch numbers and keys into them, respect
 * the credits, and look at no more of a reply than its status, since the raw side does not decode either. The others
 * use libreplay. Each function is the life of a process: it runs until it is ended, or leaves a sentence in its
 * lane. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/lane.h"
#include "bench/options.h"
#include "bench/raw.h"
#include "replay/error.h"

#define LOAD_TABLE "replay"

struct load {
    struct lane *lane;
    const struct options *options;
    const char *service;        /* endpoint */
    uint32_t connections;       /* of this process */
    uint64_t fill;              /* insert: stop after this many items; 0: never */
    uint64_t first_key, n_keys; /* update: keys that are in the table */
    struct raw_store store;
};

void load_insert(void *load);
void load_sample(void *load);
void load_update(void *load);
/* Samples, and changes the priorities of the sampled items. */
void load_sample_update(void *load);
void load_library_insert(void *load);
void load_library_sample(void *load);
void load_library_update(void *load);
void load_library_sample_update(void *load);
/* Writers that write once and then only keep their sessions. */
void load_library_idle(void *load);

/* For the files of load generators: leaves the sentence in the lane and ends the process. */
void load_fail(struct load *self, const char *format, ...) RP_PRINTF(2, 3) __attribute__((noreturn));
struct Replay__Request;
struct Replay__Reply;
/* Encodes a request; id_at says where its id stands. The caller frees the frame. */
uint8_t *load_encode(const struct Replay__Request *request, size_t *size, size_t *id_at);
/* Sends a request and waits for the reply; free it with replay__reply__free_unpacked. */
struct Replay__Reply *load_ask(struct load *self, void *socket, const struct Replay__Request *request);
/* Opens a DEALER. */
void *load_dealer(struct load *self, void *context, uint32_t connections);

#endif
