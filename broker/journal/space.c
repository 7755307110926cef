#include "broker/journal/space.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
/* Checkpoints after less journal than this would write more than the journal does. */
#define LIMIT_LEAST (256 * KIB)
#define SEGMENT_LEAST (64 * KIB)
#define SEGMENT_MOST (256 * MIB)
/* Least size of a segment that holds chunks alone. */
#define SEGMENT_LEAST_CHUNKS MIB
/* Room for what requests add to the journal while inserts wait. */
#define RESERVE_LEAST (128 * KIB)
/* Most bytes that are added after the limit was passed; the largest message, if that is more. */
#define PAST_LIMIT MIB

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

uint64_t space_limit(const struct space *self)
{
    uint64_t live = sum(self->live, self->state), want = most(self->journal_max, live);
    if (self->free == SPACE_UNKNOWN)
        return want;
    /* On a small disk, stretches of journal are shorter. Files exist for at most one per kept checkpoint, one before the oldest of
     * them (whose segments it names), one since the newest, and one for older segments that are partly dead. */
    uint64_t share = sum(self->free, self->used) / (self->keep + 3);
    uint64_t rest = sum(times(live, 2), most(PAST_LIMIT, self->message)), part = share > rest ? share - rest : 0;
    return least(want, most(part, most(LIMIT_LEAST, live / 8)));
}

uint64_t space_segment(const struct space *self)
{
    if (!self->journal)
        return least(most(self->live / 4, SEGMENT_LEAST_CHUNKS), SEGMENT_MOST);
    return least(most(space_limit(self) / 4, SEGMENT_LEAST), SEGMENT_MOST);
}

uint64_t space_moves(const struct space *self)
{
    return least(self->live, space_limit(self));
}

uint64_t space_reserve(const struct space *self)
{
    return sum(sum(times(self->state, 2), space_moves(self)), sum(self->message, RESERVE_LEAST));
}

bool space_is_low(const struct space *self)
{
    return self->free != SPACE_UNKNOWN && self->free / 2 < space_reserve(self);
}
