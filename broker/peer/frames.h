/* The frames of one message. */
#ifndef BROKER_FRAMES_H
#define BROKER_FRAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "proto/wire/duct.h"

/* Reads a message without waiting. False: there was none. Frames beyond the first `most` are read and dropped, and *whole is
 * false. The caller closes the frames. */
bool frames_receive(struct way from, zmq_msg_t *frames, uint32_t most, uint32_t *n, bool *whole);
void frames_close(zmq_msg_t *frames, uint32_t n);

#endif
