/* Several brokers that are one against one broker: how much faster they are, and whether their draws are right. */
#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/bench.h"
#include "replay/replay.h"

#define MOST_SHARDS 32u
#define GOAL_SKEWED 0.95
#define GOAL_LEARNER 2.5
#define GOAL_FEW_CORES 0.9
#define ACTORS_RATE 20000.0 /* items/s of all actors, where the limiter is the bound */
#define DRAW_ITEMS 3000u
#define DRAWS 1000000u
#define DRAW_SEEDS 10u
#define LEAST_P 0.01
#define EXPONENT 0.6 /* of the table: mass = priority to this power */

/* ---- sets of shards ---- */

/* The shards of one broker, each with its own clients, and all of them as one party. */
struct set {
    uint32_t n;
    struct options options[MOST_SHARDS];
    char service[MOST_SHARDS][64], extra[MOST_SHARDS][64 * MOST_SHARDS];
    struct party shards[MOST_SHARDS];
    struct party all;
};

/* Finds a port that nobody uses: the shards have to know each other's before they start. */
static uint16_t free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
              getsockname(fd, (struct sockaddr *)&at, &size) == 0;
    if (fd >= 0)
        close(fd);
    return ok ? ntohs(at.sin_port) : 0;
}

static void describe(struct set *self, const struct options *options)
{
    char list[64 * MOST_SHARDS] = "";
    for (uint32_t i = 0; i < self->n; i++) {
        snprintf(self->service[i], sizeof self->service[i], "tcp://127.0.0.1:%u", free_port());
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", self->service[i]);
    }
    for (uint32_t i = 0; i < self->n; i++) {
        self->options[i] = *options;
        self->options[i].shards = self->n;
        if (self->n == 1)
            continue;
        snprintf(self->extra[i], sizeof self->extra[i], "shards: [%.*s]\nshard: %u\n", (int)sizeof list - 64, list, i);
        self->options[i].service = self->service[i];
        self->options[i].extra = self->extra[i];
    }
}

/* Starts n shards that hold options->items items together, or none if `empty`. */
static bool set_start(struct set *self, const struct options *options, uint32_t n, bool empty)
{
    bool ok = true;
    self->n = n;
    describe(self, options);
    for (uint32_t i = 0; i < n && ok; i++)
        ok = run_broker(&self->options[i], options->items, empty ? 0 : options->items / n, &self->shards[i]);
    return ok;
}

/* Starts a client: thin ones work with one shard, libreplay with all. */
static bool set_add(struct set *self, uint32_t shard, enum work work, bool library)
{
    struct options one = self->options[shard];
    one.clients = one.processes = 1;
    one.library = library;
    return run_add_load(&one, &self->shards[shard], work);
}

/* Makes one party of all shards. */
static void set_join(struct set *self)
{
    struct party *all = &self->all;
    *all = self->shards[0];
    for (uint32_t i = 1; i < self->n; i++) {
        const struct party *shard = &self->shards[i];
        all->members[all->n_members++] = (struct member){
            .pid = shard->server, .tally = children_tally(), .groups = GROUP_WRITE | GROUP_ASK, .server = true};
        for (uint32_t k = 0; k < shard->n_members; k++)
            all->members[all->n_members++] = shard->members[k];
    }
}

/* ---- throughput ---- */

static double goal_of(uint32_t shards)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores >= 4 * (long)shards)
        return 0.8 * shards;
    return cores >= 2 * (long)shards ? 0.6875 * shards : GOAL_FEW_CORES;
}

/* One comparison. learner: one process in all. */
struct comparison {
    const char *what;
    enum work work;
    bool library, learner;
};

static const struct comparison rows[] = {
    {"insert, thin clients", WORK_INSERT, false, false}, {"sample, thin clients", WORK_SAMPLE, false, false},
    {"update, thin clients", WORK_UPDATE, false, false}, {"insert, libreplay", WORK_INSERT, true, false},
    {"sample, libreplay", WORK_SAMPLE, true, false},     {"update, libreplay", WORK_UPDATE, true, false},
    {"sample, one learner", WORK_SAMPLE, true, true},
};

/* Measures `clients` clients at each shard against as many at one broker. */
static bool compare(const struct options *options, const struct comparison *row)
{
    static struct set several, one;
    struct set *const sets[] = {&several, &one};
    bool ok = set_start(&several, options, options->shards, false) && set_start(&one, options, 1, false);
    for (uint32_t s = 0; s < 2 && ok; s++) {
        uint32_t n = row->learner ? 1 : sets[s]->n * options->processes;
        for (uint32_t i = 0; i < n && ok; i++)
            ok = set_add(sets[s], i % sets[s]->n, row->work, row->library);
        set_join(sets[s]);
    }
    unsigned groups = row->work == WORK_INSERT ? GROUP_WRITE : GROUP_ASK;
    const struct phase phases[] = {{&several.all, groups, false}, {&one.all, groups, false}};
    struct row shown = {.what = row->what, .other = "one shard", .memory_per_item = NAN};
    shown.goal = row->learner && goal_of(options->shards) > 1 ? GOAL_LEARNER : goal_of(options->shards);
    return report_pair(ok, options, shown, phases, row->work != WORK_INSERT);
}

/* How a load is skewed: half of the actors at one shard, or items there with so much more mass. */
struct skew {
    const char *what;
    bool crowded;
    double mass;
};

static const struct skew skews[] = {{"half of the actors at one shard", true, 1}, {"masses 3:1", false, 3}};

/* Starts thin writers with a steady rate. */
static bool add_actors(struct set *self, const struct skew *skew)
{
    uint32_t actors = 2 * self->n;
    bool ok = true;
    for (uint32_t i = 0; i < self->n; i++) {
        self->options[i].rate = ACTORS_RATE / actors;
        self->options[i].heavier = skew && i == 0 ? pow(skew->mass, 1 / EXPONENT) : 1;
    }
    for (uint32_t i = 0; i < actors && ok; i++)
        ok = set_add(self,
                     !skew || !skew->crowded ? i % self->n
                     : i < self->n           ? 0
                                             : 1 + i % (self->n - 1),
                     WORK_INSERT, false);
    return ok;
}

/* Actors, evenly and skewed, and a learner that the limiter holds to the ratio. */
static bool compare_skewed(const struct options *given, const struct skew *skew)
{
    static struct set even, skewed;
    struct options options = *given;
    char text[160];
    snprintf(text, sizeof text, "kind: sample_to_insert_ratio, samples_per_insert: 4, min_size: 1000, error_buffer: %u",
             4 * options.shards * options.batch);
    options.limiter = text;
    bool ok = set_start(&even, &options, options.shards, true) && set_start(&skewed, &options, options.shards, true) &&
              add_actors(&even, NULL) && add_actors(&skewed, skew) && set_add(&even, 0, WORK_SAMPLE, true) &&
              set_add(&skewed, 0, WORK_SAMPLE, true);
    set_join(&even);
    set_join(&skewed);
    const struct phase phases[] = {{&skewed.all, GROUP_WRITE | GROUP_ASK, false},
                                   {&even.all, GROUP_WRITE | GROUP_ASK, false}};
    struct row row = {.what = skew->what, .other = "evenly", .goal = GOAL_SKEWED, .memory_per_item = NAN};
    return report_pair(ok, &options, row, phases, true);
}

/* ---- draws ---- */

struct draws {
    struct load load;
    uint32_t draws;
};

/* Inserts items in episodes of one and gives those of shard 0 three times the mass of each other shard. Gives their keys and
 * priorities. */
static void prepare_draws(struct draws *self, rp_client *client, uint64_t *keys, double *priorities)
{
    struct load *load = &self->load;
    rp_column column = {"x", RP_DTYPE_UINT32, RP_CODEC_RAW, 0, {0}};
    rp_writer *writer = load_got(load, rp_writer_new(client, &column, 1, NULL, 30000, &load->err));
    uint32_t by_shard[256] = {0};
    for (uint32_t i = 0; i < DRAW_ITEMS; i++) {
        const void *row = &i;
        load_ok(load, rp_writer_append(writer, &row, 30000, &load->err));
        load_ok(load, rp_writer_item_last(writer, LOAD_TABLE, 1, 1, 30000, &keys[i], &load->err));
        load_ok(load, rp_writer_end_episode(writer, i % 100 == 99 ? RP_END_WAIT : RP_END_GO, 30000, &load->err));
        by_shard[keys[i] >> 56]++;
    }
    load_ok(load, rp_writer_flush(writer, 0, 30000, &load->err));
    for (uint32_t i = 0; i < DRAW_ITEMS; i++) /* items of a shard have weights 1 and 3, and the table exponent 0.6 */
        priorities[i] =
            pow((keys[i] >> 56 ? 1.0 : 3.0) / by_shard[keys[i] >> 56] * (1 + 2 * (i % 2)), 1 / EXPONENT) * 1e3;
    load_ok(load, rp_priorities_update(client, LOAD_TABLE, keys, priorities, DRAW_ITEMS, 30000, NULL, &load->err));
    rp_writer_destroy(&writer, 30000, NULL);
}

/* Returns the probability of a chi-square at least this large (Wilson and Hilferty). */
static double chi_square_p(double chi, double degrees)
{
    double z = (cbrt(chi / degrees) - (1 - 2 / (9 * degrees))) / sqrt(2 / (9 * degrees));
    return 0.5 * erfc(z / sqrt(2));
}

/* Returns the chi-square of so many draws, with DRAW_ITEMS - 1 degrees of freedom. */
static double draw(struct draws *self, rp_client *client, const double *probability)
{
    struct load *load = &self->load;
    rp_sampler_options options = {.struct_size = sizeof options};
    options.max_samples = self->draws;
    rp_sampler *sampler = load_got(load, rp_sampler_new(client, LOAD_TABLE, &options, &load->err));
    uint32_t counts[DRAW_ITEMS] = {0};
    rp_batch *batch;
    rp_status status;
    for (; (status = rp_sampler_next(sampler, &batch, 30000, &load->err)) == RP_OK; rp_batch_release(&batch)) {
        const uint32_t *numbers = rp_batch_field(batch, 0)->data;
        rp_batch_arrays arrays = {.struct_size = sizeof arrays};
        rp_batch_get_arrays(batch, &arrays);
        for (uint32_t i = 0; i < arrays.n; i++)
            counts[numbers[i] % DRAW_ITEMS]++;
    }
    load_ok(load, status == RP_END_OF_STREAM ? RP_OK : status);
    double chi = 0;
    for (uint32_t i = 0; i < DRAW_ITEMS; i++) {
        double expected = probability[i] * self->draws;
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    rp_sampler_destroy(&sampler);
    return chi;
}

/* The life of a process: the p of all draws together, and the least p of a seed, in millionths. */
static void draw_all(void *ctx)
{
    struct draws *self = ctx;
    rp_client *client = load_client(&self->load);
    static uint64_t keys[DRAW_ITEMS];
    static double priorities[DRAW_ITEMS];
    double sum = 0, least = 1, all = 0;
    prepare_draws(self, client, keys, priorities);
    for (uint32_t i = 0; i < DRAW_ITEMS; i++)
        sum += priorities[i] = pow((float)priorities[i], EXPONENT);
    for (uint32_t i = 0; i < DRAW_ITEMS; i++)
        priorities[i] /= sum;
    for (uint32_t seed = 0; seed < DRAW_SEEDS; seed++) {
        double chi = draw(self, client, priorities), p = chi_square_p(chi, DRAW_ITEMS - 1);
        least = p < least ? p : least;
        all += chi;
    }
    self->load.tally->value[0] = (uint64_t)(chi_square_p(all, (double)DRAW_SEEDS * (DRAW_ITEMS - 1)) * 1e6);
    self->load.tally->value[1] = (uint64_t)(least * 1e6);
    rp_client_destroy(&client);
    tally_set_state(self->load.tally, TALLY_DONE);
}

static bool check_draws(const struct options *options)
{
    static struct set set;
    bool ok = set_start(&set, options, options->shards, true);
    struct draws draws = {.load = {.service = set.service[0]}, .draws = options->quick ? 100000 : DRAWS};
    const struct tally *drawn = ok ? child_run(draw_all, &draws, 300) : NULL;
    set_join(&set);
    if (drawn) { /* of the least of 10 values chance alone misses 0.01 / 10 once in a hundred runs */
        report_value(options, "p of the draws with 10 seeds together", (double)drawn->value[0] * 1e-6, LEAST_P, "p");
        report_value(options, "least p of the draws over 10 seeds", (double)drawn->value[1] * 1e-6,
                     LEAST_P / DRAW_SEEDS, "p");
    }
    run_end(&set.all);
    return drawn;
}

bool command_shards(struct options *options)
{
    if (!options->shards)
        options->shards = 4;
    if (!options->processes)
        options->processes = 1;
    uint32_t processes = options->processes;
    if (options->shards * (processes + 1) > MOST_MEMBERS) {
        fprintf(stderr, "replay-bench: %u shards with %u clients each are more than %u processes\n", options->shards,
                processes, MOST_MEMBERS);
        return false;
    }
    options_settle(options);
    options->processes = processes;
    bool ok = true;
    for (uint32_t i = 0; i < sizeof rows / sizeof rows[0] && ok; i++)
        ok = !options_want(options, rows[i].what) || compare(options, &rows[i]);
    for (uint32_t i = 0; i < sizeof skews / sizeof skews[0] && ok; i++)
        ok = !options_want(options, skews[i].what) || compare_skewed(options, &skews[i]);
    ok = ok && (!options_want(options, "draws") || check_draws(options));
    return ok;
}
