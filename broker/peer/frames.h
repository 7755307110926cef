/* All frames of one message. */
#ifndef BROKER_FRAMES_H
#define BROKER_FRAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "proto/wire/duct.h"

/* Reads without waiting. False: there was no message. Of more than `most` frames the rest is read and dropped, and
 * *whole is false. The frames read are to be closed by the caller. */
bool frames_receive(struct way from, zmq_msg_t *frames, uint32_t most, uint32_t *n, bool *whole);
void frames_close(zmq_msg_t *frames, uint32_t n);

#endif
