/* The model behind a plan: sides, joint runs and pairs. Shared by the files of this room; see plan.h. */
#ifndef AGENT_LAUNCH_PLAN_IMPL_H
#define AGENT_LAUNCH_PLAN_IMPL_H

#include "agent/launch/plan/plan.h"

#define PLAN_MAX_COUNT 4096u /* the largest number of actors or learners of a curve */
#define PLAN_SAME 0.01       /* rates that differ by less are shown as equal */

enum plan_who { PLAN_OF_ACTORS, PLAN_OF_LEARNERS };

/* ---- plan_side.c ---- */

/* One side at one count. */
struct plan_side {
    uint32_t count;
    double rate;     /* items/s that the side can do */
    double own, all; /* processor seconds per item: of the side's processes; with the broker's part */
    double memory;   /* bytes of all processes of the side */
};

struct plan_model {
    const struct plan_input *input; /* borrowed */
    struct plan_curve curves[2];    /* [plan_who], smoothed */
    double scale;                   /* inserts of all joint runs, relative to what the curves say about their pairs */
    struct plan_places *places;     /* where processes go; NULL: one machine */
};

/* Returns 0 for a value that was not measured. */
double plan_known(double value);
void plan_smooth(const struct plan_curve *curve, struct plan_curve *out);
/* One count of a curve that has points: linear between two of them and below the first, level beyond the last. */
struct plan_point plan_point_at(const struct plan_curve *curve, uint32_t count);
/* True if all cores were busy in a joint run. */
bool plan_joint_full(const struct plan_input *input, const struct plan_joint *joint);
/* Beyond the last point of its curve, the rate stays at that point's. */
void plan_side_at(const struct plan_model *model, enum plan_who who, uint32_t count, struct plan_side *out);
/* Cores that the side takes, with the broker's part, if it is held back to a rate. */
double plan_side_cores(const struct plan_model *model, enum plan_who who, const struct plan_side *side, double rate);

/* ---- plan_place.c ---- */

/* One machine while processes are placed. */
struct plan_site {
    uint32_t actors, learners;
    double used, memory; /* cores and bytes of what was placed there */
    /* Of one more actor: items/s that it adds if cores are free, its cores, the broker's cores for it, its bytes. */
    double adds, takes, brokers, needs;
};

/* Places actors one by one beside a number of learners. */
struct plan_placer {
    const struct plan_input *input; /* borrowed */
    struct plan_site *sites;        /* n_hosts */
    struct plan_curve *curves;      /* n_hosts: those of kinds, smoothed */
    uint32_t *like;                 /* n_hosts: index of the curve that counts for each host */
    bool measured;                  /* there is at least one curve */
    double broker;                  /* cores of the broker, at home */
    uint32_t actors;                /* placed so far */
};

/* False: no memory. plan_placer_fini must follow in any case. */
bool plan_placer_init(struct plan_placer *self, const struct plan_input *input, uint32_t learners);
void plan_placer_fini(struct plan_placer *self);
/* Places one more actor and returns the index of its host. */
uint32_t plan_placer_add(struct plan_placer *self);
/* The curve of a host's kind. A kind that was not measured is taken to be like the one with the most similar number of cores; NULL:
 * nothing was measured. */
const struct plan_curve *plan_placer_curve(const struct plan_placer *self, uint32_t host);

/* ---- plan_hosts.c ---- */

/* Where processes go, for every number of learners that was asked for. */
struct plan_places *plan_places_new(const struct plan_input *input);
void plan_places_destroy(struct plan_places **self);
/* Returns the highest rate of inserts, up to `most`, that each machine and the network allow. *bound: what keeps the rate
 * below `most`. */
double plan_hosts_within(const struct plan_model *model, const struct plan_side *actors,
                         const struct plan_side *learners, double most, enum plan_bottleneck *bound);
/* Fills in the memory of the machine that has the least room. */
void plan_hosts_memory(const struct plan_model *model, struct plan_choice *choice);
/* Returns the largest number of actors that the hosts have cores for. */
uint32_t plan_hosts_take(const struct plan_input *input);
/* Inserts/s that the network carries, beside those of actors at home; INFINITY: not known. */
double plan_hosts_network(const struct plan_input *input);
/* What one host does in a plan. */
struct plan_use {
    uint32_t actors, learners;
    double cpu; /* cores in use, the broker's at home included */
};
/* use: n_hosts. False: no memory, or the pair is outside of the curves. */
bool plan_hosts_use(const struct plan_input *input, const struct plan_choice *choice, struct plan_use *use);
/* Prints which hosts have no free cores: "the cores of cpu1 and 3 others (...)". (plan_where.c) */
void plan_print_full(const struct plan_choice *choice, const struct plan_input *input, FILE *out);
/* Prints which host does what, and why. (plan_where.c) */
void plan_print_where(const struct plan_choice *choice, const struct plan_input *input, FILE *out);

/* ---- plan_model.c ---- */

/* plan_model_fini must follow. */
void plan_model_init(struct plan_model *self, const struct plan_input *input);
void plan_model_fini(struct plan_model *self);
/* Fills in everything but the reason; bottleneck is never PLAN_MEMORY. */
void plan_model_pair(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                     struct plan_choice *out);
/* Cores that this many inserts/s and their samples take, the broker's part included. */
double plan_model_cores(const struct plan_model *self, const struct plan_side *actors, const struct plan_side *learners,
                        double inserts);
/* The same for counts, also beyond the curves. */
void plan_model_counts(const struct plan_model *self, uint32_t actors, uint32_t learners, struct plan_choice *out);
/* The same for a pair that was run, with the results of the run. */
void plan_model_run(const struct plan_model *self, const struct plan_joint *joint, struct plan_choice *out);
/* Returns the newest joint run of a pair; NULL: there was none. */
const struct plan_joint *plan_joint_of(const struct plan_input *input, uint32_t actors, uint32_t learners);
/* The largest count that was measured, alone or jointly. */
uint32_t plan_most(const struct plan_input *input, enum plan_who who);

/* Returns the bytes that the machine with the least room has, with those that the choice needs there; *where: its name, "" with
 * one machine. */
double plan_budget(const struct plan_input *input, const struct plan_choice *choice, double *need, const char **where);
bool plan_fits(const struct plan_input *input, const struct plan_choice *choice);
/* Checks that a curve has points with counts that ascend and a rate. who: "actors", for the error. */
rp_status plan_curve_check(const struct plan_curve *curve, const char *who, rp_error *err);
/* Checks that the input is enough to compute with. */
rp_status plan_input_check(const struct plan_input *input, rp_error *err);

/* ---- plan_shards.c ---- */

/* Returns the run of a choice, with its shards; NULL: there was none. */
const struct plan_joint *plan_run_of(const struct plan_input *input, const struct plan_choice *choice);
/* Returns for which share of the time the busiest core thread worked in that run; NAN: not known. */
double plan_core_of(const struct plan_input *input, const struct plan_choice *choice);
/* Replaces the pair that is best with one shard by the one that was run with the chosen number of shards, if auto has chosen more
 * than one, and names the broker as the bottleneck if its core thread is. */
void plan_take_shards(struct plan *plan, const struct plan_model *model);

/* ---- plan_words.c ---- */

/* Fills in plan->others and all reasons. top: the highest rate that fits, with the counts of the file; unfit: a pair
 * that gives more but needs more memory than there is, or NULL. */
void plan_explain(struct plan *plan, const struct plan_model *model, const struct plan_choice *top,
                  const struct plan_choice *unfit);
/* "5% fewer inserts/s: learners would wait 8% of the time": how a differs from b. */
void plan_compare(const struct plan_input *input, const struct plan_choice *a, const struct plan_choice *b, char *out,
                  size_t size);

#endif
