/* A broker that is wrong on purpose, to see that the ledger of tests/chaos notices: of 10,000 items that it accepts it
 * loses one (FAULTY_DROP), or puts one into its table a second time under another key (FAULTY_DOUBLE). The program is
 * the real one, linked with --wrap=table_insert; nothing of this is in any other program. */

#include "broker/broker.h"

#define ONE_IN 10000u

rp_status __real_table_insert(struct table *self, const struct arrival *arrival, rp_error *err);
rp_status __wrap_table_insert(struct table *self, const struct arrival *arrival, rp_error *err);

/* Keys are counted up within a session: these are spread evenly among them. */
static bool is_chosen(uint64_t key)
{
    return (uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) % ONE_IN == 0;
}

#ifdef FAULTY_DROP

rp_status __wrap_table_insert(struct table *self, const struct arrival *arrival, rp_error *err)
{
    if (!arrival->flow || !is_chosen(arrival->key))
        return __real_table_insert(self, arrival, err);
    struct span span = arrival->span;
    span_release(&span, self->store, self->layouts);
    return RP_OK;
}

#else

rp_status __wrap_table_insert(struct table *self, const struct arrival *arrival, rp_error *err)
{
    if (!arrival->flow || arrival->span.n != 1 || !is_chosen(arrival->key))
        return __real_table_insert(self, arrival, err);
    struct arrival twin = *arrival;
    twin.key ^= UINT64_C(1) << 63;
    twin.flow = NULL;
    chunk_hold(twin.span.one);
    layouts_at(self->layouts, twin.span.layout)->refs++;
    rp_status status = __real_table_insert(self, arrival, err);
    if (status != RP_OK || __real_table_insert(self, &twin, err) != RP_OK)
        span_release(&twin.span, self->store, self->layouts);
    return status;
}

#endif
