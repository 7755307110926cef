/* The reference for every figure: plain libzmq that moves frames of the same number and sizes, which are received and
 * discarded. raw.c is short on purpose: check it. */
#ifndef BENCH_RAW_H
#define BENCH_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "bench/lane.h"

/* Memory that senders walk through again and again. Frames are copied from it, as zmq_send does, or lent to libzmq in
 * place. */
struct raw_store {
    const uint8_t *data;
    size_t size, at;
    bool lend;
};

struct raw_job {
    struct lane *lane;   /* of this process */
    struct lane *server; /* where the server writes its endpoints */
    const char *bind[2]; /* endpoints of PULL and ROUTER */
    int io_threads;
    uint32_t connections;      /* of this client process */
    uint32_t in_flight;        /* requests of each connection */
    uint32_t items;            /* items that a message or reply stands for */
    struct raw_message ingest; /* n == 0: no PULL */
    struct raw_message request[2],
        reply[2]; /* the first pair alone, or the second sent after each reply to the first */
    struct raw_store store;
};

/* Returns the next frame of a walk through the store. */
void raw_frame(zmq_msg_t *frame, struct raw_store *store, size_t size);

/* Each runs until its process is ended. */
void raw_server(struct raw_job *job);
/* PUSH if the job has an ingest message, DEALER otherwise. */
void raw_client(struct raw_job *job);

#endif
