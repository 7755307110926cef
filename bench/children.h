/* The processes of a run: the broker, the raw server, and the load generators. The program itself only starts, stops
 * and reads them, and makes no zmq context, so that it can fork. */
#ifndef BENCH_CHILDREN_H
#define BENCH_CHILDREN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "bench/lane.h"
#include "bench/options.h"

/* Makes a folder for sockets and files, and the shared lanes. False: an error was printed. */
bool children_init(void);
/* Ends all children and removes the folder. */
void children_fini(void);
const char *children_dir(void);
/* Returns a new lane, all zero. */
struct lane *children_lane(void);

/* Runs job(ctx) in a process of its own with the broker's malloc settings; it ends with this one. -1: an error was
 * printed. */
pid_t child_start(void (*job)(void *ctx), void *ctx);
/* Starts a broker with a table `replay` of this many items, and writes its endpoint to service. -1: an error was
 * printed. */
pid_t child_start_broker(const struct options *options, uint64_t items, char *service, size_t size);
/* Returns the port at which the broker that was started last serves HTTP; 0: it does not. */
uint16_t child_http_port(void);
/* Ends one process and waits for it. */
void child_end(pid_t pid);
void child_pause(pid_t pid);
void child_go(pid_t pid);
/* Sleeps, and checks the children meanwhile. False: a child has ended by itself, or an interrupt came. */
bool children_wait(double seconds);
/* Waits for a state of a lane. False: an error was printed. */
bool children_await(struct lane *lane, enum lane_state state, double seconds);

/* CPU seconds used so far; resident bytes. 0 if the child is gone. */
double child_cpu(pid_t pid);
/* The same for its first thread alone: in the broker, the thread that owns all state. */
double child_first_thread_cpu(pid_t pid);
uint64_t child_resident(pid_t pid);
double children_now(void);

#endif
