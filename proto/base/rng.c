/* xoshiro256++ (Blackman and Vigna), seeded by splitmix64, which never gives the all-zero state. */
#include "proto/base/rng.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/random.h>

static uint64_t rotate_left(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

static uint64_t split_mix(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void rng_seed(struct rng *self, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        self->s[i] = split_mix(&seed);
}

bool rng_load(struct rng *self, const uint64_t state[4])
{
    if (!(state[0] | state[1] | state[2] | state[3]))
        return false;
    for (int i = 0; i < 4; i++)
        self->s[i] = state[i];
    return true;
}

uint64_t rng_next(struct rng *self)
{
    uint64_t *s = self->s;
    uint64_t result = rotate_left(s[0] + s[3], 23) + s[0];
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/* High and low half of a 64 x 64 bit product. */
static uint64_t multiply_high(uint64_t a, uint64_t b, uint64_t *low)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    *low = (uint64_t)product;
    return (uint64_t)(product >> 64);
}

/* Lemire's method: the high half of the product is uniform if products with a low half below the threshold are redrawn. */
uint64_t rng_below(struct rng *self, uint64_t n)
{
    uint64_t low;
    uint64_t high = multiply_high(rng_next(self), n, &low);
    if (low < n) {
        uint64_t short_of = -n % n;
        while (low < short_of)
            high = multiply_high(rng_next(self), n, &low);
    }
    return high;
}

double rng_unit(struct rng *self)
{
    return (double)(rng_next(self) >> 11) * 0x1.0p-53;
}

void rng_normals(struct rng *self, double out[2])
{
    static const double PI = 3.14159265358979323846;
    double radius = sqrt(-2.0 * log(1.0 - rng_unit(self)));
    double angle = 2.0 * PI * rng_unit(self);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

uint64_t rng_hash(uint64_t seed, const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037) ^ seed;
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * UINT64_C(1099511628211);
    return hash;
}

void rng_system(void *out, size_t size)
{
    unsigned char *at = out;
    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);
        if (n < 0 && errno == EINTR)
            continue;
        /* Without random bytes ids would repeat, and no caller could continue. */
        if (n <= 0)
            abort();
        at += n;
        size -= (size_t)n;
    }
}
