/* Draws how many items of a batch come from where: the counts of a multinomial distribution. */
#ifndef AGENT_CLIENT_SHARES_H
#define AGENT_CLIENT_SHARES_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/rng.h"

/* Draws `count` times an index below n, with probabilities in proportion to the weights, and adds to counts how often each was drawn.
 * Weights that are not positive and finite count as 0. room: working memory for n numbers. False: all weights are 0, and nothing
 * was drawn. */
bool shares_draw(struct rng *rng, const double *weights, uint32_t n, uint32_t count, uint32_t *counts, double *room);
/* The same without replacement: index i stands for sizes[i] things with equal shares of its weight, and each thing is drawn at most
 * once. Returns how many were drawn: fewer than count if there are no more things. */
uint32_t shares_draw_distinct(struct rng *rng, const double *weights, const uint64_t *sizes, uint32_t n, uint32_t count,
                              uint32_t *counts);

#endif
