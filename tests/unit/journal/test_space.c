/* How much disk the journal takes: for any state and any disk the limits make sense, and together they fit. */

#include "broker/journal/space.h"
#include "tests/support/naive.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static uint64_t more_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* From a few bytes to 2^bits. */
static uint64_t any(struct rng *rng, uint32_t bits)
{
    return rng_next(rng) >> (64 - 1 - rng_next(rng) % bits);
}

static struct space any_space(struct rng *rng)
{
    return (struct space){
        .journal = rng_next(rng) % 4 != 0,
        .journal_max = MIB + any(rng, 40),
        .keep = 1 + rng_next(rng) % 10,
        .live = any(rng, 40),
        .state = any(rng, 35),
        .message = any(rng, 30),
        .used = any(rng, 42),
        .free = rng_next(rng) % 8 == 0 ? SPACE_UNKNOWN : any(rng, 44),
    };
}

TEST(limits_make_sense)
{
    struct rng rng = naive_rng(__func__);
    for (uint32_t i = 0; i < 200000; i++) {
        struct space space = any_space(&rng);
        uint64_t live = space.live + space.state, want = more_of(space.journal_max, live);
        uint64_t limit = space_limit(&space);
        /* the journal is worth a checkpoint, and no longer than what was asked for */
        assert_true(limit <= want && limit >= (want < 256 << 10 ? want : 256 << 10) && limit >= live / 8);
        uint64_t segment = space_segment(&space);
        assert_in_range(segment, 64 << 10, 256 * MIB);
        assert_true(!space.journal || segment <= more_of(limit / 4, 64 << 10));
        /* what is kept free is enough for two checkpoints, all that is moved, and one message more */
        assert_true(space_moves(&space) <= space.live && space_moves(&space) <= limit);
        assert_true(space_reserve(&space) > 2 * space.state + space_moves(&space) + space.message);
        assert_true(space.free != SPACE_UNKNOWN || (!space_is_low(&space) && limit == want));
        uint64_t past = more_of(MIB, space.message);
        /* a disk that has room for the shortest stretches is not filled by those that there are */
        uint64_t room = space.free == SPACE_UNKNOWN ? UINT64_MAX : space.free + space.used;
        uint64_t shortest = (space.keep + 3) * (more_of(256 << 10, live / 8) + 2 * live + past);
        if (room >= shortest)
            assert_true((space.keep + 3) * (limit + 2 * live + past) <= room);
        /* more room never makes it shorter */
        struct space larger = space;
        larger.free = space.free == SPACE_UNKNOWN ? SPACE_UNKNOWN : space.free + any(&rng, 40);
        assert_true(space_limit(&larger) >= limit);
    }
}

TEST(numbers_that_are_too_large_do_no_harm)
{
    struct space space = {.journal = true,
                          .journal_max = INT64_MAX,
                          .keep = 1000,
                          .live = UINT64_MAX / 2,
                          .state = UINT64_MAX / 2,
                          .message = GIB,
                          .used = UINT64_MAX / 2,
                          .free = UINT64_MAX - 1};
    assert_true(space_reserve(&space) >= space.live);
    assert_int_equal(space_segment(&space), 256 * MIB);
    assert_true(space_limit(&space) > 0);
}
