/* Answers of shards as one: means, bounds, slots and waits. */

#include "agent/client/admin/gather.h"
#include "proto/wire/pb.h"
#include "tests/support/test.h"

#define SHARDS 3u

/* ---- tables ---- */

static Replay__TableInfo table(double age_s, double rate, uint64_t sampled)
{
    Replay__TableInfo info = REPLAY__TABLE_INFO__INIT;
    info.mean_age_s = info.mean_staleness = age_s;
    info.sample_rate = rate;
    info.total_samples = sampled;
    return info;
}

TEST(means_are_weighted_by_what_is_sampled)
{
    Replay__TableInfo sum = table(1, 30, 1), more = table(5, 10, 1000);
    assert_true(gather_add(&sum.base, &more.base));
    assert_true(sum.mean_age_s == 2 && sum.mean_staleness == 2 && sum.sample_rate == 40);
    more = table(8, 0, 1000); /* is sampled no more */
    assert_true(gather_add(&sum.base, &more.base));
    assert_true(sum.mean_age_s == 2);
    sum = table(1, 0, 3);
    more = table(5, 0, 1);
    assert_true(gather_add(&sum.base, &more.base));
    assert_true(sum.mean_age_s == 2);
    sum = more = table(0, 0, 0);
    assert_true(gather_add(&sum.base, &more.base));
    assert_true(sum.mean_age_s == 0);
}

TEST(bounds_are_sums_unless_there_are_none)
{
    Replay__LimiterInfo sum = REPLAY__LIMITER_INFO__INIT, more = REPLAY__LIMITER_INFO__INIT;
    sum.min_diff = more.min_diff = -5;
    sum.max_diff = more.max_diff = 1.7e308;
    sum.cursor = 3;
    more.cursor = -4;
    assert_true(gather_add(&sum.base, &more.base));
    assert_true(sum.min_diff == -10 && sum.max_diff == 1.7e308 && sum.cursor == -1);
    assert_true(sum.min_size == 0); /* parts of a limiter without one */
    assert_true(gather_end_limiter(&sum, 0, 2) && sum.min_size == 1);
    free(sum.inserts_wait);
    free(sum.samples_wait);
}

/* ---- the whole ---- */

static struct gather_answers *answers_of(uint32_t n)
{
    struct gather_answers *answers = calloc(1, sizeof *answers + n * sizeof answers->of[0]);
    answers->n = answers->asked = answers->good = n;
    for (uint32_t i = 0; i < n; i++) {
        answers->of[i].asked = answers->of[i].answered = true;
        answers->of[i].service = "tcp://somewhere";
    }
    return answers;
}

static Replay__InfoReply *info_of(const char *slot, uint64_t version)
{
    Replay__InfoReply *info = malloc(sizeof *info);
    replay__info_reply__init(info);
    info->server = malloc(sizeof *info->server);
    replay__server_info__init(info->server);
    if (!slot)
        return info;
    info->slots = malloc(sizeof(Replay__SlotInfo *));
    info->slots[info->n_slots++] = malloc(sizeof(Replay__SlotInfo));
    replay__slot_info__init(info->slots[0]);
    info->slots[0]->name = strdup(slot);
    info->slots[0]->version = version;
    return info;
}

/* The first shard has lost the slot, and the last one has an older version than the others. */
TEST(slots_are_those_of_all)
{
    struct gather_answers *answers = answers_of(SHARDS);
    for (uint32_t i = 0; i < SHARDS; i++)
        answers->of[i].info = info_of(i ? "policy" : NULL, 10 - i);
    Replay__InfoReply *sum = (Replay__InfoReply *)gather_merge(answers);
    assert_non_null(sum);
    assert_int_equal(sum->n_slots, 1);
    assert_string_equal(sum->slots[0]->name, "policy");
    assert_int_equal(sum->slots[0]->version, 8);
    assert_int_equal(sum->shards->n_shard, SHARDS);
    unpack_free(&sum->base);
    gather_free(&answers);
}

/* A shard that is lost after its answer is no part of the sum, and has a reason. */
TEST(a_dropped_answer_is_missing)
{
    struct gather_answers *answers = answers_of(2);
    rp_error why = {.status = RP_UNAVAILABLE, .text = "gone"};
    for (uint32_t i = 0; i < 2; i++)
        answers->of[i].info = info_of("policy", 5 - i);
    gather_drop(answers, 0, &why);
    assert_int_equal(gather_first(answers), 1);
    Replay__InfoReply *sum = (Replay__InfoReply *)gather_merge(answers);
    assert_non_null(sum);
    assert_int_equal(sum->slots[0]->version, 4);
    assert_string_equal(sum->shards->shard[0]->problem, "gone");
    assert_string_equal(sum->shards->shard[1]->problem, "");
    unpack_free(&sum->base);
    gather_free(&answers);
}

static Replay__Wait *wait_of(const char *who, const char *text, uint64_t waited_ns, bool all_shards)
{
    Replay__Wait *wait = malloc(sizeof *wait);
    replay__wait__init(wait);
    wait->who = strdup(who);
    wait->kind = strdup("sample");
    wait->table = strdup("t");
    wait->text = strdup(text);
    wait->waited_ns = waited_ns;
    if (all_shards)
        wait->has_shard_case = REPLAY__WAIT__HAS_SHARD_ALL_SHARDS;
    wait->all_shards = all_shards;
    return wait;
}

/* Each shard tells of the sampler that waits for all, the last also of one that waits for nobody else; and of one of its own. */
TEST(who_waits_for_all_shards_is_there_once)
{
    struct gather_answers *answers = answers_of(SHARDS);
    for (uint32_t i = 0; i < SHARDS; i++) {
        Replay__WhyReply *why = answers->of[i].why = malloc(sizeof *why);
        replay__why_reply__init(why);
        why->waits = malloc(3 * sizeof *why->waits);
        why->waits[why->n_waits++] = wait_of("a", "for all", 10 + i, true);
        why->waits[why->n_waits++] = wait_of("a", "here", 5, false);
        if (i + 1 == SHARDS)
            why->waits[why->n_waits++] = wait_of("b", "for all", 1, true);
    }
    Replay__WhyReply *sum = (Replay__WhyReply *)gather_merge(answers);
    assert_non_null(sum);
    assert_int_equal(sum->n_waits, SHARDS + 2);
    uint32_t all = 0;
    for (uint32_t i = 0; i < SHARDS + 2; i++) {
        const Replay__Wait *wait = sum->waits[i];
        bool one = wait->has_shard_case == REPLAY__WAIT__HAS_SHARD_SHARD;
        all += !one;
        assert_int_equal(strncmp(wait->text, "shard ", 6) == 0, one);
        if (!one && wait->who[0] == 'a')
            assert_int_equal(wait->waited_ns, 10 + SHARDS - 1);
    }
    assert_int_equal(all, 2);
    unpack_free(&sum->base);
    gather_free(&answers);
}
