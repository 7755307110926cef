/* A radix sort of numbers with their values: places of chunks, times, ranks. */
#ifndef BROKER_PAIRS_H
#define BROKER_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

/* A sort key and its value. */
struct pair {
    uint64_t key, value;
};
/* Sorts by key; pairs with equal keys keep their order. False: no memory. */
bool pairs_sort(struct pair *pairs, uint64_t n);

#endif
