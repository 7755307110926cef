/* What each side waits for besides the other side. The model knows how long the limiter holds a side back. Other
 * waits (for gradients of other learners, for confirmations, for counters) are contained in the curves, and are added
 * where idle shares are shown. */
#include <math.h>

#include "agent/launch/plan/plan_impl.h"

/* The waits of the pair's own joint run: a learner alone never waits for other learners. Without a run they are not
 * known. */
static struct idle_shares waits_of(const struct plan_choice *choice, const struct plan_input *input)
{
    const struct plan_joint *joint = plan_run_of(input, choice);
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
