/* The count of a table's episodes against an array with a count for each of them. */

#include "broker/table/contents.h"
#include "tests/support/naive.h"

#define SESSIONS 40u
#define EPISODES 60u /* of each session: far more than are open at once */

TEST(random_items_match_the_model)
{
    static struct episodes episodes;
    static uint32_t items[SESSIONS][EPISODES];
    struct rng rng = naive_rng(__func__);
    uint64_t here = 0, most = 0;
    episodes_init(&episodes, NULL);
    for (uint32_t i = 0; i < 120000; i++) {
        /* The table fills up and empties several times. */
        bool enters = rng_below(&rng, 10) < (i / 15000 % 2 ? 3u : 7u);
        uint64_t session = rng_below(&rng, SESSIONS), episode = rng_below(&rng, EPISODES);
        uint32_t *n = &items[session][episode];
        if (enters) {
            assert_int_equal(episodes_enter(&episodes, session << 32 | episode), *n == 0);
            here += (*n)++ == 0;
        } else if (*n) {
            episodes_leave(&episodes, session << 32 | episode);
            here -= --*n == 0;
        }
        assert_int_equal(episodes.here, here);
        most = here > most ? here : most;
    }
    assert_true(most > 2u << EPISODES_OPEN_BITS);
    for (uint64_t session = 0; session < SESSIONS; session++)
        for (uint64_t episode = 0; episode < EPISODES; episode++)
            for (; items[session][episode]; items[session][episode]--)
                episodes_leave(&episodes, session << 32 | episode);
    assert_int_equal(episodes.here, 0);
    episodes_fini(&episodes);
}
