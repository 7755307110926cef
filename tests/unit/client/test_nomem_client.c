/* Every allocation of the client library fails once, and from each on all of them do: the call gives NO_MEMORY, in time, and
 * works when it is made again; nothing leaks, and nothing is inserted or counted twice. The client has no thread, so the
 * same allocation fails each time. */

#include "agent/client/conn/client.h"
#include "replay/admin.h"
#include "replay/collective.h"
#include "replay/params.h"
#include "replay/sampler.h"
#include "replay/writer.h"
#include "tests/support/embed.h"
#include "tests/support/nomem_scene.h"

#define IN_FLIGHT 2
#define SHORT_WAIT 40 /* while there is no memory for a long time */

void __real_broker_turn(struct broker *self, int wait_ms);
void __wrap_broker_turn(struct broker *self, int wait_ms);
struct broker *__real_broker_new(const struct broker_config *config, struct clock clock, void *context,
                                 rp_error *error);
struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context,
                                 rp_error *error);

/* The broker's allocations do not count. */
void __wrap_broker_turn(struct broker *self, int wait_ms)
{
    nomem_leave();
    __real_broker_turn(self, wait_ms);
    nomem_enter();
}

struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *error)
{
    return __real_broker_new(config, clock, context, error);
}

static const char yaml[] = "seed: 7\nsession: {expiry: 10s}\ntables:\n"
                           "  - {name: queue, max_size: 100, max_times_sampled: 1, sampler: {kind: fifo},\n"
                           "     limiter: {kind: queue}}\n"
                           "  - {name: plain, max_size: 1000, sampler: {kind: fifo}, remover: {kind: fifo},\n"
                           "     limiter: {kind: none}}\n";

static int64_t patience = WAIT;
static enum nomem_mode mode_now;
static bool repeated; /* a call was made again: a counter may have got the number twice */

struct run {
    struct broker_config config;
    struct channels channels;
    struct broker *broker;
    rp_client *client;
};

static void turn(void *ctx, int wait_ms)
{
    broker_turn(((struct run *)ctx)->broker, wait_ms > 1 ? 1 : wait_ms);
}

/* True: this process got no time, and the call has waited for its short while before anything failed. */
static bool stalled(rp_status status)
{
    bool late = mode_now == NOMEM_FOR_EVER && !nomem_has_failed() &&
                (status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE);
    repeated = repeated || late;
    return late;
}

/* True: the call is to be made once more. */
static bool again(rp_status status, const char *what)
{
    if (status == RP_OK)
        return false;
    nomem_leave();
    /* What the library sends by itself waits for memory, and the call for as long as it was told to. */
    bool late = mode_now == NOMEM_FOR_EVER && (status == RP_DEADLINE_EXCEEDED || status == RP_UNAVAILABLE);
    patience = WAIT;
    if (!nomem_has_failed() || (status != RP_NO_MEMORY && !late))
        fail_msg("%s: %s %s", what, rp_status_name((int32_t)status), err.text);
    if (!nomem_disarm())
        fail_msg("%s fails once more: %s", what, err.text);
    nomem_enter();
    return true;
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        rp_status first_;                                                                                              \
        do {                                                                                                           \
            err = (rp_error){0};                                                                                       \
            first_ = (call);                                                                                           \
        } while (stalled(first_));                                                                                     \
        if (again(first_, #call)) {                                                                                    \
            err = (rp_error){0};                                                                                       \
            rp_status status_ = (call);                                                                                \
            for (int more_ = 0; status_ == RP_NO_MEMORY && more_ < IN_FLIGHT; more_++)                                 \
                status_ = (call); /* each request that was under way may tell its own error */                         \
            if (status_ != RP_OK)                                                                                      \
                fail_msg("%s, again: %s %s", #call, rp_status_name((int32_t)status_), err.text);                       \
        }                                                                                                              \
    } while (0)
#define MAKE(out, call)                                                                                                \
    do {                                                                                                               \
        do {                                                                                                           \
            err = (rp_error){0};                                                                                       \
            (out) = (call);                                                                                            \
        } while (!(out) && stalled((rp_status)err.status));                                                            \
        if (!(out) && again((rp_status)err.status, #call))                                                             \
            (out) = (call);                                                                                            \
        if (!(out))                                                                                                    \
            fail_msg("%s: %s", #call, err.text);                                                                       \
    } while (0)

/* ---- scenes ---- */

static void connect_client(struct run *run)
{
    rp_client_options options = {.struct_size = sizeof options, .name = "nomem"};
    const struct conn_host host = {.channels = &run->channels, .turn = turn, .ctx = run};
    MAKE(run->client, client_connect("this process", &options, &host, patience, &err));
}

static rp_writer *open_writer(struct run *run)
{
    static const rp_column columns[] = {{.name = "number", .dtype = RP_DTYPE_INT32},
                                        {.name = "image", .dtype = RP_DTYPE_UINT8, .rank = 1, .shape = {3000}}};
    rp_writer *writer;
    MAKE(writer, rp_writer_new(run->client, columns, 2, NULL, patience, &err));
    return writer;
}

static void write_items(rp_writer *writer, const char *table, int32_t first, int32_t n)
{
    static const rp_slice slices[] = {{.column = 0, .count = 1, .start = -1, .squeeze = 1},
                                      {.column = 1, .count = 1, .start = -1, .squeeze = 1}};
    static uint8_t image[3000];
    for (int32_t i = first; i < first + n; i++) {
        const void *values[] = {&i, image};
        uint64_t key;
        TRY(rp_writer_append(writer, values, patience, &err));
        TRY(rp_writer_item(writer, table, 1.0, slices, 2, patience, &key, &err));
    }
}

static void scene_write(struct run *run)
{
    rp_writer *writer = open_writer(run);
    write_items(writer, "queue", 0, 5);
    TRY(rp_writer_flush(writer, 0, patience, &err));
    write_items(writer, "plain", 0, 20);
    TRY(rp_writer_end_episode(writer, RP_END_WAIT, patience, &err));
    write_items(writer, "plain", 20, 3);
    TRY(rp_writer_flush(writer, 0, patience, &err));
    TRY(rp_writer_destroy(&writer, patience, &err));
}

static void prepare_items(struct run *run)
{
    rp_writer *writer = open_writer(run);
    write_items(writer, "queue", 0, 20);
    write_items(writer, "plain", 0, 20);
    TRY(rp_writer_destroy(&writer, patience, &err));
}

/* Takes all of the queue: in its order; or as two sources, of which one must not double what the other cannot give or
 * keep. */
static void sample_all(struct run *run, bool mixed, bool on_demand)
{
    rp_sampler_options options = {.struct_size = sizeof options,
                                  .batch_size = 5,
                                  .in_flight = on_demand || mixed ? 1 : IN_FLIGHT,
                                  .on_demand = on_demand,
                                  .max_samples = mixed ? 20 : 0};
    rp_source sources[] = {{run->client, "queue", -1}, {run->client, "queue", -1}};
    bool seen[20] = {false};
    rp_sampler *sampler;
    if (mixed)
        MAKE(sampler, rp_sampler_new_mixed(sources, 2, &options, &err));
    else
        MAKE(sampler, rp_sampler_new(run->client, "queue", &options, &err));
    for (int32_t done = 0; done < 20;) {
        rp_batch *batch;
        TRY(rp_sampler_next(sampler, &batch, patience, &err));
        const rp_field_view *view = rp_batch_find(batch, "number");
        const int32_t *numbers = view->data;
        for (uint64_t i = 0; i < view->bytes / sizeof *numbers; i++, done++) {
            if (seen[numbers[i]] || (!mixed && numbers[i] != done))
                fail_msg("number %d came, %d was next", numbers[i], done);
            seen[numbers[i]] = true;
        }
        rp_batch_release(&batch);
    }
    rp_sampler_destroy(&sampler);
}

static void scene_sample(struct run *run)
{
    sample_all(run, false, false);
}

static void scene_demand(struct run *run)
{
    sample_all(run, false, true);
}

static void scene_mixed(struct run *run)
{
    sample_all(run, true, false);
}

static void scene_mixed_demand(struct run *run)
{
    sample_all(run, true, true);
}

static void scene_update(struct run *run)
{
    uint64_t keys[3];
    double priorities[3] = {3, 4, 5};
    const struct table *table = &run->broker->tables.list[1];
    for (uint32_t i = 0; i < 3; i++)
        keys[i] = table->in.items[i].key;
    rp_updater_options options = {.struct_size = sizeof options, .batch = 2, .in_flight = 2};
    rp_updater *updater;
    rp_change change;
    MAKE(updater, rp_updater_new(run->client, "plain", &options, &err));
    TRY(rp_updater_add(updater, keys, priorities, 3, patience, NULL, &err));
    TRY(rp_updater_flush(updater, patience, &change, &err));
    TRY(rp_updater_destroy(&updater, patience, &err));
    TRY(rp_items_delete(run->client, "plain", keys, 1, patience, &change, &err));
}

static void scene_params(struct run *run)
{
    uint64_t version = 0;
    int64_t value = 0;
    rp_params *params = NULL;
    TRY(rp_params_put(run->client, "policy", "abc", 3, patience, &version, &err));
    TRY(rp_params_get(run->client, "policy", 0, patience, &params, &err));
    assert_int_equal(rp_params_slot(params)->bytes, 3);
    rp_params_release(&params);
    TRY(rp_counter_add(run->client, "steps", 5, patience, &value, &err));
    TRY(rp_counter_add(run->client, "steps", 5, patience, &value, &err));
    if (value != 10 && !repeated)
        fail_msg("5 and 5 make %lld", (long long)value);
    rp_info *info = NULL;
    TRY(rp_admin_info(run->client, NULL, 10, patience, &info, &err));
    rp_info_free(&info);
    rp_info *waits = NULL;
    TRY(rp_admin_why(run->client, patience, &waits, &err));
    rp_info_free(&waits);
    rp_reduce *reduce;
    MAKE(reduce, rp_reduce_join(run->client, "group", patience, &err));
    float vector[] = {1, 2, 3};
    TRY(rp_reduce_add(reduce, vector, 3, patience, patience, NULL, &err));
    assert_true(vector[2] == 3);
    TRY(rp_reduce_leave(&reduce, patience, &err));
}

/* ---- what there is in the end ---- */

struct state {
    uint32_t size[2];
    uint64_t inserts[2], samples[2], orphaned[2];
    double priority;
};

static void look(struct run *run, struct state *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t t = 0; t < 2; t++) {
        const struct table *table = &run->broker->tables.list[t];
        out->size[t] = table->in.size;
        out->inserts[t] = table->stats.total_inserts;
        out->samples[t] = table->stats.total_samples;
        for (uint32_t i = 0; i < table->in.high; i++)
            if (table->in.items[i].span.n)
                out->priority += table->in.items[i].priority;
    }
}

static void compare(const struct state *want, const struct state *got)
{
    for (uint32_t t = 0; t < 2; t++)
        if (got->size[t] != want->size[t] || got->inserts[t] != want->inserts[t] || got->samples[t] != want->samples[t])
            fail_msg("table %u: size %u %u inserts %u %u samples %u %u", t, got->size[t], want->size[t],
                     (unsigned)got->inserts[t], (unsigned)want->inserts[t], (unsigned)got->samples[t],
                     (unsigned)want->samples[t]);
    assert_true(got->priority == want->priority);
}

static void start(struct run *run)
{
    char problems[2048];
    *run = (struct run){0};
    log_set_level(LEVEL_OFF);
    if (!embed_read_config(yaml, &run->config, problems, sizeof problems))
        fail_msg("%s", problems);
    run->broker = must(broker_new_local(&run->config, clock_system(), &run->channels, &err));
}

static void play(const struct nomem_scene *scene, uint64_t n, enum nomem_mode mode, struct state *out)
{
    static struct run run;
    start(&run);
    if (scene->act != connect_client) {
        connect_client(&run);
        if (scene->prepare)
            scene->prepare(&run);
    }
    int64_t start = clock_ns();
    mode_now = mode;
    patience = mode == NOMEM_FOR_EVER ? SHORT_WAIT : WAIT;
    nomem_arm(n, mode);
    nomem_enter();
    scene->act(&run);
    nomem_leave();
    nomem_disarm();
    patience = WAIT;
    if (clock_ns() - start > WAIT / 2 * NS_PER_MS) /* a call has waited until its end */
        fail_msg("it took %lld ms", (long long)((clock_ns() - start) / NS_PER_MS));
    rp_client_destroy(&run.client);
    __real_broker_turn(run.broker, 0);
    look(&run, out);
    broker_destroy(&run.broker);
    channels_fini(&run.channels);
    schema_free(&broker_schema, &run.config);
}

int main(void)
{
    static const struct nomem_scene scenes[] = {
        {"connect", .act = connect_client},
        {"params", .act = scene_params},
        {"write", .act = scene_write},
        {"sample", .prepare = prepare_items, .act = scene_sample},
        {"demand", .prepare = prepare_items, .act = scene_demand},
        {"mixed", .prepare = prepare_items, .act = scene_mixed},
        {"mixed_demand", .prepare = prepare_items, .act = scene_mixed_demand,
         .only_once = true}, /* each call would wait for 2 s */
        {"update", .prepare = prepare_items, .act = scene_update},
    };
    const struct nomem_group group = {scenes, sizeof scenes / sizeof scenes[0], play, compare, sizeof(struct state), 0};
    return nomem_main(&group);
}
