/* xoshiro256++ with splitmix64 seeding. Every owner has its own generator; there is no global one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rng {
    uint64_t s[4];
};

void rng_seed(struct rng *self, uint64_t seed);
/* Restores a saved state. False: the state is all zeros, which is not valid. */
bool rng_load(struct rng *self, const uint64_t state[4]);
uint64_t rng_next(struct rng *self);
/* Uniform in [0, n), n > 0, without modulo bias. */
uint64_t rng_below(struct rng *self, uint64_t n);
/* Uniform in [0, 1), 53 bits. */
double rng_unit(struct rng *self);
/* Two independent numbers from the standard normal distribution. */
void rng_normals(struct rng *self, double out[2]);
/* Returns a hash of the text (FNV-1a): a seed for each name, or whether a text has changed. */
uint64_t rng_hash(uint64_t seed, const char *text);
/* Bytes from the operating system, for ids. */
void rng_system(void *out, size_t size);
