/* A checkpoint that cannot begin for lack of memory is tried again after a pause, not in every turn. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <ftw.h>

#include "broker/checkpoint/checkpoint_run.h"
#include "tests/support/embed.h"
#include "tests/support/nomem.h"
#include "tests/support/test.h"

void __real_broker_turn(struct broker *self, int wait_ms);
void __wrap_broker_turn(struct broker *self, int wait_ms);
struct broker *__real_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err);
struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err);

void __wrap_broker_turn(struct broker *self, int wait_ms)
{
    __real_broker_turn(self, wait_ms);
}

struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *err)
{
    return __real_broker_new(config, clock, context, err);
}

static int forget(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static bool run(struct broker *broker, bool memory)
{
    if (memory)
        return checkpoints_run(broker->checkpoints);
    nomem_arm(1, NOMEM_FOR_EVER);
    nomem_enter();
    bool began = checkpoints_run(broker->checkpoints);
    nomem_leave();
    assert_int_equal(nomem_disarm(), began);
    assert_false(checkpoint_is_running(broker->checkpoints));
    return began;
}

TEST(pause)
{
    char folder[] = "/tmp/test-nomem-checkpoint-XXXXXX", keys[200];
    struct embed embed;
    assert_non_null(mkdtemp(folder));
    snprintf(keys, sizeof keys, "journal: {dir: %s}\ncheckpoint: {every: 0s, on_exit: false}\n", folder);
    log_set_level(LEVEL_OFF);
    embed_start(&embed, "  - {name: t, max_size: 10}\n", keys);
    struct broker *broker = embed.broker;
    embed_settle(&embed);
    broker->stream->journal_bytes = UINT64_C(1) << 40; /* one is due */
    assert_true(run(broker, false));
    for (uint32_t i = 0; i < 100; i++)
        assert_false(run(broker, false));
    broker->loop.now_ns += 29 * NS_PER_S;
    assert_false(run(broker, true));
    broker->loop.now_ns += 2 * NS_PER_S;
    assert_true(run(broker, true));
    assert_true(checkpoint_is_running(broker->checkpoints));
    embed_stop(&embed);
    assert_int_equal(nftw(folder, forget, 8, FTW_DEPTH | FTW_PHYS), 0);
}
