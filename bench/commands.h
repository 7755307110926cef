/* The commands of replay-bench. Each prints its figures and returns the exit status. argv[0] is the command's name. */
#ifndef BENCH_COMMANDS_H
#define BENCH_COMMANDS_H

#include "bench/options.h"

int command_insert(struct options *options);
int command_sample(struct options *options);
int command_update(struct options *options);
int command_mixed(struct options *options);
int command_clients(struct options *options);
int command_curve(struct options *options);
/* bench_checkpoint.c, bench_journal.c, bench_idle.c, bench_http.c */
int command_checkpoint(struct options *options);
int command_journal(struct options *options);
int command_idle(struct options *options);
int command_http(struct options *options);
int command_shards(struct options *options);

#endif
