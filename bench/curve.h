/* CURVE on all sockets of a run: the broker's, those of its clients, and those of libzmq alone. The keys are made once, before
 * any process starts, and both sides use the same. Until curve_init nothing is encrypted. */
#ifndef BENCH_CURVE_H
#define BENCH_CURVE_H

#include <stdbool.h>

/* Makes the keys in the folder of the run. False: an error was printed. */
bool curve_init(void);
void curve_fini(void);
/* Returns the folder of the broker's keys; NULL: nothing is encrypted. */
const char *curve_folder(void);

/* Before zmq_bind and zmq_connect. */
void curve_serve(void *socket);
void curve_connect(void *socket);

#endif
