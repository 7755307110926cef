/* Three structures do the same work in turn: the reference, the sum tree alone, and the prioritized selector with
 * exponent 0.6 around it. Each figure is the median over the repetitions of the thread's CPU time for one element.
 * New weights differ from those before, so that nothing is saved by writing the same value again. */
#include "bench/bench_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/options.h"
#include "bench/ref_tree.h"
#include "broker/select/selector.h"
#include "broker/select/sumtree.h"
#include "proto/base/rng.h"

#define BATCH 256u
#define WORK (1u << 18) /* elements in one measurement */

enum structure { REFERENCE, SUMTREE, SELECTOR, N_STRUCTURES };
enum operation { UPDATE, UPDATE_BATCH, SAMPLE_BATCH, N_OPERATIONS };

static const char *const structure_names[N_STRUCTURES] = {"binary_f32", "sumtree", "prioritized"};
static const char *const operation_names[N_OPERATIONS] = {"update", "update_256", "sample_256"};

struct bench {
    struct ref_tree reference;
    struct sumtree tree;
    void *selector;
    struct rng rng;
    uint32_t leaves;
    uint32_t *slots;
    float *weights;
    uint64_t sink; /* keeps the compiler from dropping picks */
};

static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static float new_weight(struct rng *rng)
{
    return 0.01f + (float)rng_unit(rng);
}

static void bench_fini(struct bench *self)
{
    ref_tree_fini(&self->reference);
    sumtree_fini(&self->tree);
    if (self->selector)
        selector_prioritized.destroy(self->selector);
    free(self->slots);
    free(self->weights);
}

static bool bench_init(struct bench *self, uint32_t leaves)
{
    static const rp_option exponent = {.name = "exponent", .value = "0.6"};
    *self = (struct bench){.leaves = leaves};
    rng_seed(&self->rng, 1);
    self->slots = malloc(WORK * sizeof *self->slots);
    self->weights = malloc(WORK * sizeof *self->weights);
    self->selector = selector_prioritized.create(&exponent, 1, leaves, 1, NULL);
    bool good = ref_tree_init(&self->reference, leaves) && sumtree_init(&self->tree, leaves);
    if (!good || !self->slots || !self->weights || !self->selector) {
        bench_fini(self);
        return false;
    }
    for (uint32_t slot = 0; slot < leaves; slot++) {
        float weight = new_weight(&self->rng);
        ref_tree_set(&self->reference, slot, weight);
        sumtree_set(&self->tree, slot, weight);
        selector_prioritized.insert(self->selector, slot, (double)weight);
    }
    return true;
}

static void draw_work(struct bench *self)
{
    for (uint32_t i = 0; i < WORK; i++) {
        self->slots[i] = (uint32_t)rng_below(&self->rng, self->leaves);
        self->weights[i] = new_weight(&self->rng);
    }
}

static void update(struct bench *self, enum structure structure, uint32_t from, uint32_t n)
{
    const uint32_t *slots = self->slots + from;
    const float *weights = self->weights + from;
    for (uint32_t i = 0; i < n; i++) {
        if (structure == REFERENCE)
            ref_tree_set(&self->reference, slots[i], weights[i]);
        else if (structure == SUMTREE)
            sumtree_set(&self->tree, slots[i], weights[i]);
        else
            selector_prioritized.update(self->selector, slots[i], (double)weights[i]);
    }
}

static void prefetch(struct bench *self, enum structure structure, uint32_t from, uint32_t n)
{
    if (structure == SUMTREE) {
        for (uint32_t i = 0; i < n; i++)
            sumtree_prefetch(&self->tree, self->slots[from + i]);
    } else if (structure == SELECTOR) {
        for (uint32_t i = 0; i < n; i++)
            selector_prioritized.prefetch(self->selector, self->slots[from + i]);
    }
}

static void sample(struct bench *self, enum structure structure)
{
    uint32_t picked[BATCH];
    double probabilities[BATCH];
    if (structure == REFERENCE) {
        for (uint32_t i = 0; i < BATCH; i++)
            picked[i] = ref_tree_pick(&self->reference, &self->rng);
    } else if (structure == SUMTREE) {
        sumtree_pick(&self->tree, &self->rng, BATCH, picked);
    } else {
        selector_prioritized.pick(self->selector, BATCH, picked, probabilities);
    }
    self->sink += picked[BATCH - 1];
}

static void work(struct bench *self, enum structure structure, enum operation operation)
{
    if (operation == UPDATE) {
        update(self, structure, 0, WORK);
        return;
    }
    for (uint32_t from = 0; from < WORK; from += BATCH) {
        if (operation == UPDATE_BATCH) {
            prefetch(self, structure, from, BATCH);
            update(self, structure, from, BATCH);
        } else {
            sample(self, structure);
        }
    }
}

/* Nanoseconds for one element. The structures evict each other from the caches: the first round brings this one
 * back. */
static double measure(struct bench *self, enum structure structure, enum operation operation)
{
    draw_work(self);
    work(self, structure, operation);
    draw_work(self);
    double start = cpu_ns();
    work(self, structure, operation);
    return (cpu_ns() - start) / WORK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(uint32_t leaves, enum operation operation, const double *ns, bool json, bool first)
{
    if (json) {
        printf("%s\n  {\"leaves\": %u, \"operation\": \"%s\"", first ? "" : ",", leaves, operation_names[operation]);
        for (int s = 0; s < N_STRUCTURES; s++)
            printf(", \"%s_ns\": %.2f", structure_names[s], ns[s]);
        printf(", \"ratio\": %.2f}", ns[REFERENCE] / ns[SUMTREE]);
    } else {
        printf("%10u  %-12s %12.1f %10.1f %12.1f %9.1fx\n", leaves, operation_names[operation], ns[REFERENCE],
               ns[SUMTREE], ns[SELECTOR], ns[REFERENCE] / ns[SUMTREE]);
    }
    fflush(stdout);
}

static bool run_size(uint32_t leaves, uint32_t repeats, bool json, bool first)
{
    static double ns[N_OPERATIONS][N_STRUCTURES][MOST_REPEATS];
    struct bench bench;
    if (!bench_init(&bench, leaves)) {
        fprintf(stderr, "replay-bench tree: no memory for %u leaves\n", leaves);
        return false;
    }
    for (uint32_t r = 0; r < repeats; r++) {
        for (int o = 0; o < N_OPERATIONS; o++) {
            for (int s = 0; s < N_STRUCTURES; s++)
                ns[o][s][r] = measure(&bench, (enum structure)s, (enum operation)o);
        }
    }
    for (int o = 0; o < N_OPERATIONS; o++) {
        double median[N_STRUCTURES];
        for (int s = 0; s < N_STRUCTURES; s++) {
            qsort(ns[o][s], repeats, sizeof(double), compare);
            median[s] = ns[o][s][repeats / 2];
        }
        print_row(leaves, (enum operation)o, median, json, first && o == 0);
    }
    bench_fini(&bench);
    return true;
}

struct tree_options {
    bool json;
    uint32_t repeats, leaves;
};

static void print_help(const void *target);

#define AT(field) CLI_AT(struct tree_options, field)
_Static_assert(MOST_REPEATS == 101, "the help names it");
static const struct cli_option rows[] = {
    {"json", 0, NULL, "print JSON", 1, CLI_SWITCH, AT(json)},
    {"repeat", 0, "N", "measure N times (1 to 101, default 7) and take the median", 1, CLI_TAKE, AT(repeats), 1,
     MOST_REPEATS, .take = options_take_whole},
    {"leaves", 0, "N", "only this size (1 to 1000000000, default 10^4, 10^5, 10^6 and 10^7)", 1, CLI_TAKE, AT(leaves),
     1, 1e9, .take = options_take_whole},
    {.name = "help", .letter = 'h', .who = 1, .kind = CLI_HELP},
};
static const struct cli cli = {.program = "replay-bench tree",
                               .options = rows,
                               .n = sizeof rows / sizeof rows[0],
                               .who = 1,
                               .width = 11,
                               .help = print_help};

static void print_help(const void *target)
{
    (void)target;
    puts("usage: replay-bench tree [--json] [--repeat N] [--leaves N]");
    cli_print_options(&cli, 1);
}

int bench_tree(int argc, char **argv)
{
    struct tree_options options = {.repeats = 7};
    int status = options_line(&cli, &options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    bool json = options.json;
    uint32_t repeats = options.repeats, leaves = options.leaves;
    if (json)
        printf("{\"unit\": \"ns of thread CPU time per element\", \"repeats\": %u, \"rows\": [", repeats);
    else
        printf("ns of thread CPU time per element, median of %u\n%10s  %-12s %12s %10s %12s %10s\n", repeats, "leaves",
               "operation", structure_names[0], structure_names[1], structure_names[2], "ratio");
    for (uint32_t size = leaves ? leaves : 10000; size <= (leaves ? leaves : 10000000); size *= 10) {
        if (!run_size(size, repeats, json, size == (leaves ? leaves : 10000)))
            return 1;
        if (leaves)
            break;
    }
    if (json)
        printf("\n]}\n");
    return 0;
}
