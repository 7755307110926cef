/* What either side waits for besides the other one. The model knows how long the limiter holds a side back; other waits (learners
 * for each other's gradients, confirmations, counters) are part of the curves already, and are added where shares are told. */
#include <math.h>

#include "agent/launch/plan/plan_impl.h"

/* Those of its own joint run: a learner alone waits for no other one's gradients. Without a run nothing is known. */
static struct idle_shares waits_of(const struct plan_choice *choice, const struct plan_input *input)
{
    const struct plan_joint *joint = plan_joint_of(input, choice->actors, choice->learners);
    return joint ? joint->waits : (struct idle_shares){{0}, {0}};
}

static double all_but(const double shares[IDLE_CAUSES], enum idle_cause held)
{
    double sum = 0;
    for (int i = 0; i < IDLE_CAUSES; i++)
        if (i != (int)held && isfinite(shares[i]))
            sum += shares[i];
    return sum;
}

static double told(double held, const double shares[IDLE_CAUSES], enum idle_cause cause)
{
    return isfinite(held) ? fmin(1, held + all_but(shares, cause)) : NAN;
}

double plan_actor_idle(const struct plan_choice *choice, const struct plan_input *input)
{
    return input ? told(choice->actor_idle, waits_of(choice, input).actor, IDLE_CREDIT) : choice->actor_idle;
}

double plan_learner_idle(const struct plan_choice *choice, const struct plan_input *input)
{
    return input ? told(choice->learner_idle, waits_of(choice, input).learner, IDLE_SAMPLE) : choice->learner_idle;
}

struct idle_shares plan_waits(const struct plan_choice *choice, const struct plan_input *input)
{
    struct idle_shares waits = waits_of(choice, input);
    waits.actor[IDLE_CREDIT] = choice->actor_idle;
    waits.learner[IDLE_SAMPLE] = choice->learner_idle;
    return waits;
}
