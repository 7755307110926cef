#include "tests/support/nomem_scene.h"
#include "tests/support/test.h"

#define SCENES_MOST 32u

static const struct nomem_group *group;
static struct {
    const char *scene;
    uint64_t n;
    enum nomem_mode mode;
    bool done;
} now;

/* For people: which allocation it was. */
static int tell(void **state)
{
    (void)state;
    char what[64];
    snprintf(what, sizeof what, "%s, %s", now.scene, now.mode == NOMEM_ONCE ? "once" : "for ever");
    if (!now.done)
        nomem_print_failed(what, now.n);
    nomem_disarm();
    nomem_others(false);
    return 0;
}

/* A thread that ends may have a block for a moment longer: then fewer are held than at the first look, and that many from here on. */
static uint64_t check_held(uint64_t most)
{
    uint64_t held = nomem_held();
    for (int ms = 0; held > most && ms < WAIT; ms++, held = nomem_held())
        usleep(1000);
    if (held > most)
        nomem_print_held(5);
    assert_true(held <= most);
    return held;
}

static uint64_t least_held(void)
{
    uint64_t held = nomem_held();
    for (int ms = 0; ms < 30; ms++, usleep(1000))
        held = nomem_held() < held ? nomem_held() : held;
    return held;
}

static void play_all(const struct nomem_scene *scene, struct state *want, struct state *got)
{
    nomem_play_fn *play = scene->play ? scene->play : group->play;
    play(scene, 0, NOMEM_ONCE, want); /* what is made once and for all is there then */
    uint64_t held = least_held();
    play(scene, 0, NOMEM_ONCE, want);
    uint64_t count = nomem_count();
    assert_true(count > 0);
    for (int mode = NOMEM_ONCE; mode <= (scene->only_once ? NOMEM_ONCE : NOMEM_FOR_EVER); mode++) {
        uint32_t step = mode == NOMEM_FOR_EVER && group->step ? group->step : 1;
        bool failed = true;
        for (uint64_t n = 1; failed; n += step) {
            now.scene = scene->name;
            now.n = n;
            now.mode = (enum nomem_mode)mode;
            now.done = false;
            assert_true(n <= 2 * count + 40);
            nomem_mark();
            play(scene, n, now.mode, got);
            group->compare(want, got);
            held = check_held(held);
            now.done = true;
            failed = nomem_has_failed();
        }
    }
    if (getenv("NOMEM_ONLY"))
        fprintf(stderr, "%s: %u allocations\n", scene->name, (unsigned)count);
}

static void test_scene(void **state)
{
    const struct nomem_scene *scene = *state;
    struct state *want = malloc(group->state_bytes), *got = malloc(group->state_bytes);
    assert_true(want && got);
    if (scene->before)
        scene->before();
    play_all(scene, want, got);
    if (scene->after)
        scene->after();
    free(want);
    free(got);
}

int nomem_main(const struct nomem_group *given)
{
    struct CMUnitTest tests[SCENES_MOST];
    group = given;
    for (uint32_t i = 0; i < LENT_TEXTS; i++)
        textf(" "); /* from here on, each text that is lent takes the place of another */
    for (uint32_t i = 0; i < group->n && i < SCENES_MOST; i++)
        tests[i] = (struct CMUnitTest){.name = group->scenes[i].name,
                                       .test_func = test_scene,
                                       .teardown_func = tell,
                                       .initial_state = (void *)(uintptr_t)&group->scenes[i]};
    if (getenv("NOMEM_ONLY"))
        cmocka_set_test_filter(getenv("NOMEM_ONLY"));
    return _cmocka_run_group_tests("nomem", tests, group->n, NULL, NULL);
}
