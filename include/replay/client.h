/* A connection to a broker, shared by the writers, samplers and calls that use it.
 *
 * Time-outs in all calls: a negative time-out waits without limit, 0 polls. Several threads may use one client; a writer or
 * a sampler may be used by one thread at a time.
 *
 * After fork, the child has none of the parent's threads and connections. There, a call with an object of the parent returns
 * RP_FAILED_PRECONDITION, and destroying the object only forgets it: nothing is sent, and the parent's object goes on. What was
 * received before (batches, parameters, infos) can be read and released. A client that is made in the child works. */
#ifndef REPLAY_CLIENT_H
#define REPLAY_CLIENT_H

#include <stdint.h>

#include "replay/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_client rp_client;

/* Set struct_size to sizeof(rp_client_options) and the rest to 0 for the defaults. */
typedef struct rp_client_options {
    uint32_t struct_size;
    uint32_t reserved;
    const char *name;       /* a label for people, shown by the broker; NULL: "client-<pid>" */
    void *zmq_context;      /* borrowed; needed for inproc:// endpoints; NULL: the client has its own */
    int64_t backoff_min_ms; /* delay before the first reconnect; 0: 50 */
    int64_t backoff_max_ms; /* the delay doubles up to this; 0: 500 */
    const char *key_file;   /* key for a broker that uses keys (docs/OPERATE.md); NULL: what REPLAY_KEY_FILE names, if
                             * it is set; "": none */
} rp_client_options;

typedef enum rp_client_state {
    RP_CLIENT_CONNECTING = 0, /* no connection: the client keeps trying */
    RP_CLIENT_CONNECTED = 1,  /* with shards: shard 0 answers; rp_client_info says how many do */
} rp_client_state;

typedef struct rp_client_info {
    uint32_t struct_size;
    int32_t state;             /* an rp_client_state */
    uint64_t id;               /* of this client; random */
    uint64_t broker;           /* of the broker, or of shard 0; a new random number at each start */
    uint64_t reconnects;       /* number of reconnects, to all shards */
    uint32_t tables;           /* number of tables */
    uint32_t max_batch;        /* largest number of items in one sample */
    char endpoint[256];        /* service endpoint in use; with shards: that of shard 0 */
    char release[64];          /* of the broker */
    uint32_t shards;           /* number of shards; 1: the broker is alone */
    uint32_t connected_shards; /* number of them that answer now */
} rp_client_info;

/* Called every 50 ms by a thread that waits inside a call of the library; the library holds no lock meanwhile. Not 0: the call
 * ends with RP_CANCELLED. A call that ends so has done nothing, as after a time-out; only for a request to the broker it is not
 * known whether it was carried out. The function may use the library, but not the object whose call waits. */
typedef int rp_wait_fn(void *ctx);
/* Sets the function for waits of the calling thread; NULL: none. */
RP_API void rp_wait_set(rp_wait_fn *fn, void *ctx);

/* Connects to the service endpoint of a broker ("tcp://127.0.0.1:7600") and returns when the broker has answered. NULL
 * with err set: no connection. options may be NULL. While no broker answers, here or later, the log (replay/log.h) says so: after
 * five seconds, and again after pauses that double. RP_RESOURCE_EXHAUSTED: this process can open too few further files.
 *
 * A broker with shards: one endpoint, of any shard, is enough, because each shard knows the others. Several endpoints, separated
 * by commas, help when one of the shards may be down. The call waits for all shards; those that have not answered one second
 * after the first keep connecting in the background, but shard 0 must answer. A shard whose settings differ from the others' is
 * refused with RP_FAILED_PRECONDITION. A shard that moves to another endpoint is found there when another shard comes back with the
 * new list. */
RP_API rp_client *rp_client_connect(const char *endpoints, const rp_client_options *options, int64_t timeout_ms,
                                    rp_error *err);
/* The same in two steps: starts to connect, and waits. Until rp_client_wait has returned RP_OK, only it and rp_client_destroy may be
 * called. RP_UNAVAILABLE: no broker has answered so far, and the client goes on trying. Several threads may wait at once. */
RP_API rp_client *rp_client_open(const char *endpoints, const rp_client_options *options, rp_error *err);
RP_API rp_status rp_client_wait(rp_client *client, int64_t timeout_ms, rp_error *err);
/* Ends requests that still wait with RP_CANCELLED. Destroy all its other objects first: for those that are left the
 * log has C0107, calls that need the broker return RP_CANCELLED, and what they need is never freed. Nulls *client. */
RP_API void rp_client_destroy(rp_client **client);
RP_API int32_t rp_client_get_state(rp_client *client);
/* Fills *out; set out->struct_size first. */
RP_API rp_status rp_client_get_info(rp_client *client, rp_client_info *out, rp_error *err);
/* Returns the name of table i, or NULL past the end. Valid until the client is destroyed. */
RP_API const char *rp_client_table(rp_client *client, uint32_t i);

#ifdef __cplusplus
}
#endif

#endif
