#include "tests/support/nomem_peer.h"
#include "tests/support/test.h"

/* ---- only what the broker does counts ---- */

void __real_broker_turn(struct broker *self, int wait_ms);
void __wrap_broker_turn(struct broker *self, int wait_ms);
struct broker *__real_broker_new(const struct broker_config *config, struct clock clock, void *context,
                                 rp_error *error);
struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context,
                                 rp_error *error);

void __wrap_broker_turn(struct broker *self, int wait_ms)
{
    nomem_enter();
    __real_broker_turn(self, wait_ms);
    nomem_leave();
}

struct broker *__wrap_broker_new(const struct broker_config *config, struct clock clock, void *context, rp_error *error)
{
    nomem_enter();
    struct broker *broker = __real_broker_new(config, clock, context, error);
    nomem_leave();
    return broker;
}

/* ---- peers ---- */

void nomem_refused(struct testpeer *peer, const struct testpeer_answer *answer)
{
    (void)peer;
    assert_non_null(answer);
    if (!nomem_has_failed())
        fail_msg("refused without a reason: %u %s", answer->status, answer->text);
    if (answer->status != RP_NO_MEMORY)
        fail_msg("status %u instead of NO_MEMORY: %s", answer->status, answer->text);
    nomem_disarm();
}

struct testpeer *nomem_peer(struct embed *embed)
{
    struct testpeer *peer = testpeer_new(embed);
    peer->refused = nomem_refused;
    peer->keep = true;
    return peer;
}

struct testpeer *nomem_writer(struct embed *embed, uint32_t big)
{
    const struct testpeer_column columns[] = {{"x", "uint64", 0, {0}, 8}, {"big", "uint8", 1, {big}, big}};
    struct testpeer *peer = nomem_peer(embed);
    testpeer_open_with(peer, true, columns, 2);
    return peer;
}

void nomem_push(struct testpeer *peer)
{
    testpeer_push(peer);
    for (uint32_t tries = 0;; tries++) {
        embed_settle(peer->embed);
        assert_int_equal(testpeer_heartbeat(peer, 0, true)->status, RP_OK);
        if (peer->credit->received == peer->number && !peer->credit->gap)
            return;
        if (!nomem_has_failed() || tries == 2)
            fail_msg("message %llu of %llu was received", (unsigned long long)peer->credit->received,
                     (unsigned long long)peer->number);
        nomem_disarm();
        assert_int_equal(testpeer_resume(peer, 1, true)->status, RP_OK);
        assert_int_equal(peer->lost_messages, 0);
        testpeer_resend(peer, peer->credit->received);
    }
}
