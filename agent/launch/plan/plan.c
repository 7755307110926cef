#include "agent/launch/plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/format.h"
#include "proto/base/need.h"

#define SAME 0.001        /* share of a rate: what differs by less is shown as equal */
#define MOST_LEARNERS 64u /* that are searched; plan.max_learners allows no more */
#define MANY_HOSTS 8u     /* more hosts than these are shown in groups */
#define NEARLY_ALL 0.95   /* share of a host's cores from which on they are all busy */

static const char *plural(uint32_t count)
{
    return count == 1 ? "" : "s";
}

/* As format_bytes, for a number that was measured or read. */
static const char *plan_bytes(char *out, double bytes)
{
    return format_bytes(out, bytes > 0 ? (uint64_t)fmin(bytes, 1e18) : 0);
}

static bool same_pair(const struct plan_pair *a, const struct plan_pair *b)
{
    return a->actors == b->actors && a->learners == b->learners;
}

/* ---- the search ---- */

struct search {
    struct plan_pair top, chosen; /* among pairs that may be chosen: the highest rate, and the best pair near it */
    struct plan_pair smallest;    /* the pair that needs the least memory */
    struct plan_pair unfit;       /* would give clearly more, and needs more memory than there is; no actors: none */
    bool any;                     /* at least one pair may be chosen; otherwise top and chosen are the smallest */
};

/* A pair of the search. */
struct pair {
    uint32_t actors, learners;
    double inserts, memory;
    bool fits, run;
};

struct pairs {
    struct pair *list;
    uint32_t n;
};

static uint32_t bound_of(uint32_t bound, uint32_t most)
{
    return bound && bound < most ? bound : most;
}

/* A count of the file, or what is wanted within bounds. */
static uint32_t bounded(double wanted, uint32_t fixed, uint32_t bound)
{
    return fixed ? fixed : (uint32_t)fmax(1, fmin(wanted, bound));
}

static struct pairs list_pairs(struct plan_model *model, uint32_t fixed_actors, uint32_t fixed_learners)
{
    const struct plan_input *input = model->input;
    uint32_t most_actors = fixed_actors ? fixed_actors : bound_of(input->max_actors, PLAN_MAX_COUNT);
    uint32_t most_learners = fixed_learners ? fixed_learners : bound_of(input->max_learners, MOST_LEARNERS);
    uint32_t first = fixed_actors ? fixed_actors : 1, least = fixed_learners ? fixed_learners : 1;
    struct pairs pairs = {
        .list = need_alloc((size_t)(most_actors - first + 1) * (most_learners - least + 1) * sizeof *pairs.list)};
    for (uint32_t y = least; y <= most_learners; y++)
        for (uint32_t x = first; x <= most_actors; x++) {
            struct plan_pair choice;
            plan_model_pair(model, x, y, 0, &choice);
            pairs.list[pairs.n++] = (struct pair){
                x, y, choice.inserts, choice.memory, plan_fits(input, &choice), choice.runs > 0 && choice.inserts > 0};
        }
    return pairs;
}

/* Returns the pair with the fewest processes that comes near a rate, of equally many the fastest; NULL: none. */
static const struct pair *smallest_near(const struct pairs *pairs, double rate, bool fits, bool run)
{
    const struct pair *best = NULL;
    for (uint32_t i = 0; i < pairs->n; i++) {
        const struct pair *pair = &pairs->list[i];
        if (pair->fits != fits || (run && !pair->run) || pair->inserts < rate * (1 - PLAN_NOISE))
            continue;
        uint32_t count = pair->actors + pair->learners, least = best ? best->actors + best->learners : 0;
        if (!best || count < least || (count == least && pair->inserts > best->inserts))
            best = pair;
    }
    return best;
}

/* If a pair that fits was run, only pairs that were run are chosen. */
static void find_best(struct plan_model *model, uint32_t fixed_actors, uint32_t fixed_learners, struct search *out)
{
    struct pairs pairs = list_pairs(model, fixed_actors, fixed_learners);
    const struct pair *top = NULL, *highest = pairs.list, *smallest = pairs.list;
    bool run = false;
    for (uint32_t i = 0; i < pairs.n; i++)
        run |= pairs.list[i].run && pairs.list[i].fits;
    for (uint32_t i = 0; i < pairs.n; i++) {
        const struct pair *pair = &pairs.list[i];
        if (pair->inserts > highest->inserts)
            highest = pair;
        if (pair->memory < smallest->memory)
            smallest = pair;
        if (pair->fits && (pair->run || !run) && (!top || pair->inserts > top->inserts))
            top = pair;
    }
    *out = (struct search){.any = top != NULL};
    const struct pair *chosen = top ? smallest_near(&pairs, top->inserts, true, run) : smallest;
    const struct pair *unfit = top ? smallest_near(&pairs, highest->inserts, false, false) : NULL;
    plan_model_pair(model, smallest->actors, smallest->learners, 0, &out->smallest);
    plan_model_pair(model, (top ? top : smallest)->actors, (top ? top : smallest)->learners, 0, &out->top);
    plan_model_pair(model, chosen->actors, chosen->learners, 0, &out->chosen);
    if (unfit && unfit->inserts * (1 - PLAN_NOISE) > top->inserts) {
        plan_model_pair(model, unfit->actors, unfit->learners, 0, &out->unfit);
        out->chosen.bottleneck = PLAN_MEMORY;
    }
    free(pairs.list);
}

/* ---- reasons ---- */

static void add_pair(struct text *text, const struct plan_pair *choice)
{
    text_add(text, "%u actor%s, %u learner%s", choice->actors, plural(choice->actors), choice->learners,
             plural(choice->learners));
}

/* "would need 3 GiB of 2 GiB on cpu1". */
static void add_memory(struct text *text, const char *verb, const struct plan_input *input,
                       const struct plan_pair *choice)
{
    format_buffer need, have;
    const struct plan_host *host = &input->hosts[choice->tight];
    text_add(text, "%s %s of %s", verb, plan_bytes(need, choice->tight_memory), plan_bytes(have, host->memory));
    if (input->n_hosts > 1)
        text_add(text, " on %s", host->name);
}

static void add_search(struct text *text, const struct plan_input *input, const struct plan_pair *choice,
                       const struct plan_pair *top)
{
    double loss = top->inserts > 0 ? 1 - choice->inserts / top->inserts : 0;
    if (!same_pair(choice, top) && loss >= SAME) {
        text_add(text, "%.1f%% below the highest rate (", 100 * loss);
        add_pair(text, top);
        text_add(text, ")");
        return;
    }
    double cores = plan_cores(input);
    text_add(text, "the highest rate within %.3g core%s", cores, cores == 1 ? "" : "s");
}

static void explain_chosen(const struct plan_input *input, struct plan_pair *choice, const struct search *found)
{
    struct text text = {0};
    bool actors = input->fixed_actors > 0, learners = input->fixed_learners > 0;
    if (!plan_fits(input, choice))
        add_memory(&text, "needs", input, choice);
    else if (actors && learners)
        text_add(&text, "as the file says");
    else
        add_search(&text, input, choice, &found->top);
    if (found->unfit.actors > 0) {
        text_add(&text, "; ");
        add_pair(&text, &found->unfit);
        add_memory(&text, " would need", input, &found->unfit);
    }
    if (actors && learners)
        text_add(&text, "; actors.count and learners.count are numbers in the file");
    else if (actors || learners)
        text_add(&text, "; %s.count is a number in the file", actors ? "actors" : "learners");
    snprintf(choice->reason, sizeof choice->reason, "%s", text_get(&text));
    text_fini(&text);
}

/* ---- shards ---- */

/* A shard has one core thread. More shards pay where that thread is the bottleneck and cores are left for more of them; only a run can
 * show by how much, so the number is doubled as long as runs give clearly more. Actors and learners that are just enough for one core
 * thread cannot show what two of them do: the counts that the file leaves open grow with the shards. */

/* Share of the time below which the core thread holds nobody back. Above it, a run decides: where clients wait for each reply before
 * they go on, a core thread that works half of the time is half of the way. */
#define CORE_BUSY 0.4
#define CORE_FULL 0.9   /* share of the time from which on the core thread bounds a pair */
#define SHARD_CORES 1.0 /* cores that must be free for more shards: a core thread and what moves its bytes */
#define SHARDS_PAY 0.1  /* share of the rate that twice the shards must add */

/* The fastest run with this many shards whose counts the file allows; NULL: there is none. */
static const struct plan_pair *fastest(const struct plan_input *input, uint32_t shards)
{
    const struct plan_pair *found = NULL;
    for (uint32_t i = 0; i < input->n_runs; i++) {
        const struct plan_pair *run = &input->runs[i];
        bool allowed = (!input->fixed_actors || run->actors == input->fixed_actors) &&
                       (!input->fixed_learners || run->learners == input->fixed_learners);
        if (run->shards == shards && allowed && (!found || run->inserts > found->inserts))
            found = run;
    }
    return found;
}

static double gain_over(const struct plan_pair *more, const struct plan_pair *fewer)
{
    return fewer->inserts > 0 ? more->inserts / fewer->inserts - 1.0 : 0.0;
}

/* The run with as many shards as pay: more as long as each doubling does. choice: the pair that is best with one. *refused: the run
 * whose doubling did not pay; NULL: none. */
static const struct plan_pair *best_shards(const struct plan_input *input, const struct plan_pair *choice,
                                           const struct plan_pair **refused)
{
    const struct plan_pair *best = plan_run_of(input, choice->actors, choice->learners, 1), *more = NULL;
    *refused = NULL;
    while (best && !*refused && (more = fastest(input, 2 * best->shards)))
        *(gain_over(more, best) < SHARDS_PAY ? refused : &best) = more;
    return best;
}

/* True if a run with twice the shards may show that they pay; otherwise `why` gets the reason. */
static bool more_may_pay(const struct plan_input *input, const struct plan_pair *best, const struct plan_pair *refused,
                         struct text *why)
{
    double home = input->hosts[PLAN_HOME].cores, left = fmax(0.0, home - plan_known(best->home));
    if (best->core < CORE_BUSY)
        text_add(why, ": more shards would gain little");
    else if (left < SHARD_CORES)
        text_add(why, ", but only %.2g of %.3g cores are left for more shards", left, home);
    else if (refused && gain_over(refused, best) < 0)
        text_add(why, ", but %u shards gave %.0f%% less", refused->shards, -100.0 * gain_over(refused, best));
    else if (refused)
        text_add(why, ", but %u shards gave only %+.0f%%", refused->shards, 100.0 * gain_over(refused, best));
    else if (2 * best->shards > input->most_shards)
        text_add(why, ", but the table's sampler, limiter or sizes allow no %u shards", 2 * best->shards);
    else if (2 * best->shards > home)
        text_add(why, ", but %u shards are more than %.3g cores", 2 * best->shards, home);
    else
        return isfinite(best->core);
    return false;
}

static void explain_fixed_shards(const struct plan_input *input, const struct plan_pair *run, struct text *text)
{
    struct text unused = {0};
    text_add(text, "as broker.shards says");
    if (!run || !isfinite(run->core))
        return;
    text_add(text, "; the busiest core thread works %.0f%% of the time", 100.0 * run->core);
    if (input->fixed_shards > 1 && run->core * input->fixed_shards < CORE_BUSY)
        text_add(text, ", so one would do");
    else if (input->fixed_shards == 1 && more_may_pay(input, run, NULL, &unused))
        text_add(text, ", so more may pay (auto measures it)");
    text_fini(&unused);
}

/* Chooses the number of shards: that of the file, or as many as pay. Returns the run that shows it, if it is more than one. */
static const struct plan_pair *choose_shards(const struct plan_input *input, const struct plan_pair *choice,
                                             struct plan_broker *out)
{
    struct text text = {0};
    const struct plan_pair *refused, *best = best_shards(input, choice, &refused), *alone = NULL;
    *out = (struct plan_broker){.shards = input->fixed_shards ? input->fixed_shards : best ? best->shards : 1};
    if (input->fixed_shards) {
        explain_fixed_shards(input, plan_run_of(input, choice->actors, choice->learners, 0), &text);
    } else if (!best || !isfinite(best->core)) {
        text_add(&text, "it was not measured how busy the broker is");
    } else {
        if (best->shards > 1) {
            alone = plan_run_of(input, choice->actors, choice->learners, 1);
            out->gain = gain_over(best, alone);
            text_add(&text, "%+.0f%% inserts/s against one; ", 100.0 * out->gain);
        }
        text_add(&text, "%s works %.0f%% of the time",
                 best->shards > 1 ? "the busiest core thread" : "the broker's core thread", 100.0 * best->core);
        if (more_may_pay(input, best, refused, &text))
            text_add(&text, ", and more were not measured");
    }
    snprintf(out->reason, sizeof out->reason, "%s", text_get(&text));
    text_fini(&text);
    return alone ? best : NULL;
}

/* Replaces the pair that is best with one shard by the one that was run with more. */
static void take_shards(struct plan *plan, struct plan_model *model, const struct plan_pair *run)
{
    struct plan_pair alone = plan->chosen, *chosen = &plan->chosen;
    bool best = same_pair(&plan->best, &alone);
    plan_model_pair(model, run->actors, run->learners, run->shards, chosen);
    if (same_pair(chosen, &alone))
        memcpy(chosen->reason, alone.reason, sizeof chosen->reason);
    else
        snprintf(chosen->reason, sizeof chosen->reason,
                 "%.0f%% more inserts/s than the best pair with one shard (%u actor%s, %u learner%s)",
                 100.0 * plan->broker.gain, alone.actors, plural(alone.actors), alone.learners, plural(alone.learners));
    if (best)
        plan->best = *chosen;
}

/* Twice the shards get twice the processes, as far as cores, memory and the file allow. */
static void grow_pair(const struct plan_input *input, const struct plan_pair *best, struct plan_pair *next)
{
    double used = plan_known(best->cpu), left = plan_cores(input) - plan_known(best->others);
    double factor = fmax(1.0, fmin(2.0, used > 0 ? left / used : 2.0));
    struct plan_pair choice;
    next->actors =
        bounded(round(best->actors * factor), input->fixed_actors, bound_of(input->max_actors, PLAN_MAX_COUNT));
    next->learners =
        bounded(round(best->learners * factor), input->fixed_learners, bound_of(input->max_learners, PLAN_MAX_COUNT));
    if (plan_predict(input, next->actors, next->learners, &choice) && plan_fits(input, &choice))
        return;
    next->actors = best->actors;
    next->learners = best->learners;
}

bool plan_next_shards(const struct plan_input *input, struct plan_pair *next)
{
    struct plan plan;
    struct plan_input alone = *input;
    alone.fixed_shards = 1;
    if (input->fixed_shards || input->n_runs == PLAN_MAX_RUNS || plan_solve(&alone, &plan, NULL) != RP_OK)
        return false;
    const struct plan_pair *refused, *best = best_shards(input, &plan.chosen, &refused);
    *next = (struct plan_pair){.shards = 1, .actors = plan.chosen.actors, .learners = plan.chosen.learners};
    if (!best)
        return true;
    struct text unused = {0};
    bool more = more_may_pay(input, best, refused, &unused);
    text_fini(&unused);
    next->shards = 2 * best->shards;
    if (more)
        grow_pair(input, best, next);
    return more;
}

/* ---- the plan ---- */

/* The largest number of actors whose memory fits beside the chosen learners: a bound for resizing. */
static uint32_t most_actors(struct plan_model *model, const struct plan_pair *chosen)
{
    uint32_t count = chosen->actors, bound = bound_of(model->input->max_actors, PLAN_MAX_COUNT);
    for (; count < bound; count++) {
        struct plan_pair more;
        plan_model_pair(model, count + 1, chosen->learners, 0, &more);
        if (!plan_fits(model->input, &more))
            break;
    }
    return count;
}

static rp_status nothing_fits(const struct plan_pair *smallest, const struct plan_input *input, rp_error *err)
{
    struct text text = {0};
    add_memory(&text, "need", input, smallest);
    err_set(err, RP_INVALID_ARGUMENT,
            "%u actor%s and %u learner%s, with the broker, %s: raise plan.memory, or make the table smaller",
            smallest->actors, plural(smallest->actors), smallest->learners, plural(smallest->learners),
            text_get(&text));
    text_fini(&text);
    return RP_INVALID_ARGUMENT;
}

static void fill_plan(struct plan_model *model, const struct search *found, const struct search *wished,
                      struct plan *out)
{
    const struct plan_input *input = model->input;
    out->chosen = wished->chosen;
    out->best = found->any ? found->chosen : wished->chosen;
    explain_chosen(input, &out->chosen, wished);
    const struct plan_pair *more = choose_shards(input, &out->chosen, &out->broker);
    if (more)
        take_shards(out, model, more);
    /* A side that waits while the core thread is busy waits for the broker, and not for the other side. */
    if (out->chosen.bottleneck != PLAN_CORES && out->chosen.bottleneck != PLAN_MEMORY && out->chosen.core >= CORE_FULL)
        out->chosen.bottleneck = PLAN_BROKER;
    out->most_actors = most_actors(model, &out->chosen);
}

rp_status plan_solve(const struct plan_input *input, struct plan *out, rp_error *err)
{
    *out = (struct plan){0};
    RP_TRY(plan_input_check(input, err));
    bool all_fixed = input->fixed_actors && input->fixed_learners;
    if (!(input->spi > 0) && !all_fixed)
        return err_set(err, RP_INVALID_ARGUMENT,
                       "the table's limiter sets no ratio of samples to inserts to plan for: give it one, or give "
                       "actors.count and learners.count as numbers");
    struct plan_model model;
    struct search found, wished;
    rp_status status = RP_OK;
    plan_model_init(&model, input);
    find_best(&model, 0, 0, &found);
    find_best(&model, input->fixed_actors, input->fixed_learners, &wished);
    if (!found.any && !all_fixed)
        status = nothing_fits(&found.smallest, input, err);
    else
        fill_plan(&model, &found, &wished, out);
    plan_model_fini(&model);
    return status;
}

/* ---- which pair to run next ---- */

/* The formula only says where to begin: with the smallest pair that is expected to come near the highest rate. From there the waits of
 * the best run say where to go. */

#define WAITS 0.1     /* a side that waits for a smaller share of the time is busy */
#define MORE 2.0      /* no run has more than this many times the processes of the run before */
#define SATURATED 0.9 /* share of the cores from which on the cores bound a run */
#define CROWD 4.0     /* this many times the actors count as a crowd */
#define FREE 0.5      /* share of the cores in use below which a crowd is tried */

static double share_of(double share)
{
    return isfinite(share) ? fmin(1, fmax(0, share)) : 0;
}

/* Fills in the pair within bounds. False: it was run, or does not fit. */
static bool is_new(const struct plan_input *input, double actors, double learners, struct plan_pair *pair)
{
    struct plan_pair choice;
    pair->actors = bounded(actors, input->fixed_actors, bound_of(input->max_actors, PLAN_MAX_COUNT));
    pair->learners = bounded(learners, input->fixed_learners, bound_of(input->max_learners, MOST_LEARNERS));
    return !plan_run_of(input, pair->actors, pair->learners, 0) &&
           plan_predict(input, pair->actors, pair->learners, &choice) && plan_fits(input, &choice);
}

/* Finds what is worth a run after the best one so far. False: nothing is. */
static bool next_after(const struct plan_input *input, const struct plan_pair *best, struct plan_pair *next)
{
    double x = best->actors, y = best->learners, cores = plan_cores(input), used = plan_known(best->cpu);
    double actors = share_of(best->waits.actor[IDLE_CREDIT]), learners = share_of(best->waits.learner[IDLE_SAMPLE]);
    double more = used > 0 ? fmin(MORE, cores / used) : MORE;
    bool full = used + plan_known(best->others) >= SATURATED * cores, both = fabs(actors - learners) < WAITS;
    double held = full ? fmax(actors, 0.5) : actors;
    const struct {
        bool worth;
        double actors, learners;
    } pairs[] = {
        /* Where cores are free, more of the side for which the other side waits; of both, if neither waits. */
        {!full,
         ceil(x * (both                ? more
                   : learners > actors ? fmin(more, 1 / (1 - learners))
                                       : 1)),
         ceil(y * (both                ? more
                   : actors > learners ? fmin(more, 1 / (1 - actors))
                                       : 1))},
        /* Of a side that waits, only as many as its working time takes; half of the actors, where all cores are busy. */
        {true, held > WAITS ? ceil(x * (1 - held)) : x, learners > WAITS ? ceil(y * (1 - learners)) : y},
        {true, x, y - 1},
        /* A machine whose idle cores wake slowly is faster with more processes, even if they wait. Only a run can show that. */
        {used > 0 && used < FREE * cores && CROWD * x <= cores, floor(cores), y},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (pairs[i].worth && is_new(input, pairs[i].actors, pairs[i].learners, next))
            return true;
    /* The best run once more: one run can win by luck. */
    next->actors = best->actors;
    next->learners = best->learners;
    return best->runs < 2;
}

bool plan_next(const struct plan_input *input, struct plan_pair *next)
{
    struct plan plan;
    struct plan_input alone = *input;
    uint32_t pairs = 0;
    alone.fixed_shards = plan_shards(input);
    for (uint32_t i = 0; i < input->n_runs; i++)
        pairs += input->runs[i].shards == alone.fixed_shards;
    if (pairs >= PLAN_MAX_PAIRS || plan_solve(&alone, &plan, NULL) != RP_OK)
        return false;
    *next = (struct plan_pair){
        .actors = plan.chosen.actors, .learners = plan.chosen.learners, .shards = alone.fixed_shards};
    if (plan.chosen.runs == 0)
        return true;
    return !(input->fixed_actors && input->fixed_learners) && next_after(&alone, &plan.chosen, next);
}

/* ---- which host does what ---- */

/* Hosts that are shown in one row: neighbours of equal kinds and roles that do the same. */
struct row {
    uint32_t first, n;
    struct plan_site site; /* of the busiest host */
};

static const char *reason_of(const struct plan_input *input, const struct row *row)
{
    const struct plan_host *host = &input->hosts[row->first];
    const struct plan_site *site = &row->site;
    if (!host->actors && !host->learners && site->actors == 0 && site->learners == 0)
        return row->first == PLAN_HOME ? "broker and evaluator" : "left out: it was lost or did not answer";
    if (!host->actors)
        return site->learners == 0       ? "its learners are not needed"
               : row->first == PLAN_HOME ? "broker, evaluator and learners"
                                         : "learners only";
    if (site->actors == 0)
        return site->learners > 0 ? "actors add more elsewhere" : "not needed: actors add more elsewhere";
    if (!plan_example(input, row->first))
        return "taken to be like a host that was measured";
    bool full = host->cores > 0 && site->used >= NEARLY_ALL * host->cores;
    return full ? "actors add most here: all its cores are busy" : "actors add most here";
}

static bool belongs(const struct plan_input *input, const struct plan_site *site, const struct row *row, uint32_t host)
{
    const struct plan_host *a = &input->hosts[row->first], *b = &input->hosts[host];
    return input->n_hosts > MANY_HOSTS && row->first != PLAN_HOME && strcmp(a->kind, b->kind) == 0 &&
           a->actors == b->actors && a->learners == b->learners && row->site.learners == site->learners &&
           row->site.actors == site->actors;
}

static void print_row(const struct plan_input *input, const struct row *row, struct grid *grid)
{
    const struct plan_host *first = &input->hosts[row->first];
    const char *each = row->n > 1 ? " each" : "";
    if (row->n == 1)
        grid_add(grid, first->name);
    else
        grid_addf(grid, "%s to %s (%u hosts, %.3g cores each)", first->name, input->hosts[row->first + row->n - 1].name,
                  row->n, first->cores);
    grid_addf(grid, "%u%s", row->site.actors, each);
    grid_addf(grid, "%u%s", row->site.learners, each);
    grid_addf(grid, "%.3g of %.3g", row->site.used, first->cores);
    grid_add(grid, reason_of(input, row));
}

static void print_where(const struct plan_pair *choice, const struct plan_input *input, FILE *out)
{
    static const char *const titles[] = {"where", ">actors", ">learners", ">cores used", "why"};
    struct plan_site *sites = need_alloc(input->n_hosts * sizeof *sites);
    struct grid grid;
    plan_use(input, choice, sites);
    grid_init(&grid, titles, sizeof titles / sizeof titles[0]);
    for (struct row row = {0}; row.first < input->n_hosts; row = (struct row){.first = row.first + row.n}) {
        row.site = sites[row.first];
        for (row.n = 1; row.first + row.n < input->n_hosts; row.n++) {
            const struct plan_site *next = &sites[row.first + row.n];
            if (!belongs(input, next, &row, row.first + row.n))
                break;
            row.site.used = fmax(row.site.used, next->used);
        }
        print_row(input, &row, &grid);
    }
    grid_print(&grid, out);
    free(sites);
}

/* ---- for people ---- */

static const char *const bottlenecks[PLAN_BOTTLENECKS] = {
    [PLAN_ACTORS] = "the actors (a learner more would change nothing)",
    [PLAN_LEARNERS] = "the learners (an actor more would change nothing)",
    [PLAN_MEMORY] = "memory (more processes would give more, and do not fit)",
    [PLAN_BALANCED] = "none (actors and learners are in balance)",
};

static void print_bottleneck(const struct plan_pair *choice, const struct plan_input *input, FILE *out)
{
    bool actors = choice->bottleneck == PLAN_MAX_ACTORS;
    fprintf(out, "  bottleneck: ");
    if (choice->bottleneck == PLAN_CORES && input->n_hosts > 1)
        fprintf(out, "the cores of a host (more processes would change nothing)\n");
    else if (choice->bottleneck == PLAN_CORES)
        fprintf(out, "the cores (all %.3g are busy; more processes would change nothing)\n", plan_cores(input));
    else if (choice->bottleneck == PLAN_BROKER)
        fprintf(out,
                "the broker (the busiest core thread works %.0f%% of the time; more processes would change nothing)\n",
                100 * choice->core);
    else if (actors || choice->bottleneck == PLAN_MAX_LEARNERS)
        fprintf(out, "the %s: plan.max_%s allows %u (a larger bound lets the plan try more)\n",
                actors ? "actors" : "learners", actors ? "actors" : "learners",
                actors ? input->max_actors : input->max_learners);
    else
        fprintf(out, "%s\n", bottlenecks[choice->bottleneck]);
}

static void print_choice(const struct plan_pair *choice, const struct plan_broker *broker,
                         const struct plan_input *input, FILE *out)
{
    format_buffer text, have;
    char actors[128], learners[128];
    double cores = plan_cores(input), memory = plan_memory(input);
    fprintf(out, "plan: %u actor%s, %u learner%s%s\n", choice->actors, plural(choice->actors), choice->learners,
            plural(choice->learners), choice->runs > 0 ? " (measured together)" : "");
    fprintf(out, "  inserts     %s\n", format_rate(text, choice->inserts));
    fprintf(out, "  samples     %s", format_rate(text, choice->samples));
    if (input->spi > 0)
        fprintf(out, ", %.4g per insert", input->spi);
    fputc('\n', out);
    idle_words(choice->waits.actor, actors, sizeof actors);
    idle_words(choice->waits.learner, learners, sizeof learners);
    fprintf(out, "  waiting     actors %.0f%%%s%s%s, learners %.0f%%%s%s%s of the time\n",
            100 * plan_actor_idle(choice), actors[0] ? " (" : "", actors, actors[0] ? ")" : "",
            100 * plan_learner_idle(choice), learners[0] ? " (" : "", learners, learners[0] ? ")" : "");
    print_bottleneck(choice, input, out);
    fprintf(out, "  processor   %.*g of %.*g core%s\n", choice->cpu < 100 ? 2 : 4, choice->cpu, cores < 1000 ? 3 : 6,
            cores, cores == 1 ? "" : "s");
    fprintf(out, "  memory      %s", plan_bytes(text, choice->memory));
    if (memory > 0)
        fprintf(out, " of %s", plan_bytes(have, memory));
    fprintf(out, "\n  because     %s\n", choice->reason);
    if (broker->shards > 0)
        fprintf(out, "  shards      %u: %s\n", broker->shards, broker->reason);
    if (choice->others > 0)
        fprintf(out,
                "  disturbed   other programs took %.2g of %.3g cores while this was measured: plan again (--again) "
                "when they are done\n",
                choice->others, input->hosts[PLAN_HOME].cores);
}

static void add_share(struct grid *grid, double share)
{
    grid_addf(grid, isnan(share) ? "-" : "%.0f%%", 100 * share);
}

/* Pairs that ran together. */
static void print_runs(const struct plan_input *input, FILE *out)
{
    static const char *const titles[] = {">actors",      ">learners",      ">shards", ">inserts",    ">samples",
                                         ">actors wait", ">learners wait", ">cores",  ">core thread"};
    struct grid grid;
    format_buffer text;
    if (input->n_runs == 0)
        return;
    grid_init(&grid, titles, sizeof titles / sizeof titles[0]);
    for (uint32_t i = 0; i < input->n_runs; i++) {
        const struct plan_pair *run = &input->runs[i];
        grid_addf(&grid, "%u", run->actors);
        grid_addf(&grid, "%u", run->learners);
        grid_addf(&grid, "%u", run->shards);
        grid_add(&grid, format_rate(text, run->inserts));
        grid_add(&grid, format_rate(text, run->samples));
        add_share(&grid, run->waits.actor[IDLE_CREDIT]);
        add_share(&grid, run->waits.learner[IDLE_SAMPLE]);
        grid_addf(&grid, "%.2f", run->cpu);
        add_share(&grid, run->core);
    }
    fprintf(out, "actors and learners together, with the limiter:\n");
    grid_print(&grid, out);
}

/* "actors.count says 8; auto would take 5". */
static void print_number(const char *key, uint32_t says, uint32_t best, FILE *out)
{
    if (says == best)
        fprintf(out, "%s says %u, as auto would\n", key, says);
    else if (says > 0)
        fprintf(out, "%s says %u; auto would take %u\n", key, says, best);
}

void plan_print(const struct plan *self, const struct plan_input *input, FILE *out)
{
    print_choice(&self->chosen, &self->broker, input, out);
    if (input->n_hosts > 1)
        print_where(&self->chosen, input, out);
    /* The only run is that of the file's numbers: what auto would choose is not known. */
    if (input->n_runs != 1) {
        print_number("actors.count", input->fixed_actors, self->best.actors, out);
        print_number("learners.count", input->fixed_learners, self->best.learners, out);
    }
    print_runs(input, out);
}
