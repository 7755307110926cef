/* Optimisers over a vector of parameters. */
#ifndef AGENT_NET_OPTIM_H
#define AGENT_NET_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

enum optim_kind { OPTIM_ADAM, OPTIM_RMSPROP /* centred */ };

struct optim_config {
    int32_t kind;
    double learning_rate;
    double beta1, beta2; /* Adam; RMSProp uses beta2 as its decay */
    uint64_t anneal;     /* steps over which the rate falls linearly to a tenth, where it stays; 0: it never falls */
    double epsilon;      /* Adam: added to the root; RMSProp: added under it, as in Ape-X */
};

/* Its state is plain vectors, which are saved as they are. */
struct optim {
    struct optim_config config;
    uint32_t n;
    uint64_t steps;
    float *first;  /* Adam: mean of gradients; RMSProp: the same, for centring */
    float *second; /* mean of squares */
};

/* beta1 .9, beta2 .999, epsilon 1e-8 for Adam; decay .95, epsilon 1.5e-7 for RMSProp (Ape-X). */
struct optim_config optim_defaults(int32_t kind, double learning_rate);
/* False: no memory. */
bool optim_init(struct optim *self, const struct optim_config *config, uint32_t n);
void optim_fini(struct optim *self);
void optim_step(struct optim *self, float *params, const float *grads);

/* Scales the vector so that its norm is at most `max` (0: no limit). Returns the norm before. A norm that is not finite
 * zeroes the vector. */
double optim_clip(float *grads, uint32_t n, double max);
/* target += tau * (params - target); a plain copy from tau 1 on. */
void optim_track(float *target, const float *params, uint32_t n, double tau);

#endif
