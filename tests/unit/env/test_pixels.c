/* Boards as images: every pixel against the planes of the same environment without them. */

#include "tests/support/envs.h"
#include "tests/support/naive.h"

#define MOST_SIDE 84
#define MOST_CELLS 100

struct board {
    struct env *plain, *drawn;
    uint32_t rows, columns, planes, side;
    uint8_t seen[MOST_CELLS * 8], images[MOST_SIDE * MOST_SIDE * 4];
    uint8_t sets[4][MOST_CELLS]; /* the set planes of each cell as bits, in the last four steps */
    int16_t grey[256];           /* what a set is drawn as; -1: not known yet */
};

static void open_board(struct board *self, const char *name, const char *side)
{
    const rp_option pixels = {"pixels", side};
    memset(self, 0, sizeof *self);
    memset(self->grey, 0xff, sizeof self->grey);
    self->plain = ENV(.name = (char *)name);
    self->drawn = ENV(.name = (char *)name, .options = {.data = (void *)&pixels, .count = 1});
    const uint32_t *shape = self->drawn->spec.observation_shape;
    self->rows = self->plain->spec.observation_shape[0];
    self->columns = self->plain->spec.observation_shape[1];
    self->planes = self->plain->spec.observation_shape[2];
    self->side = (uint32_t)strtoul(side, NULL, 10);
    assert_true(shape[0] == self->side && shape[1] == self->side && shape[2] == 4);
    assert_int_equal(self->drawn->spec.observation_dtype, RP_DTYPE_UINT8);
}

static void check(struct board *self, bool first)
{
    memmove(self->sets[0], self->sets[1], 3 * sizeof self->sets[0]);
    for (uint32_t i = 0; i < self->rows * self->columns; i++) {
        self->sets[3][i] = 0;
        for (uint32_t plane = 0; plane < self->planes; plane++)
            self->sets[3][i] |= (uint8_t)(self->seen[i * self->planes + plane] << plane);
    }
    for (int frame = 0; first && frame < 3; frame++)
        memcpy(self->sets[frame], self->sets[3], sizeof self->sets[3]);
    for (uint32_t at = 0; at < self->side * self->side * 4; at++) {
        uint32_t y = at / 4 / self->side, x = at / 4 % self->side;
        uint32_t cell = y * self->rows / self->side * self->columns + x * self->columns / self->side;
        int16_t *grey = &self->grey[self->sets[at % 4][cell]];
        if (*grey < 0)
            *grey = self->images[at];
        if (self->images[at] != *grey)
            fail_msg("%s: frame %u at %u, %u is %u, elsewhere %d", self->plain->ops->name, at % 4, y, x,
                     self->images[at], *grey);
    }
    assert_int_equal(self->grey[0], 0);
}

static void play(struct board *self, uint32_t steps)
{
    struct rng rng = rng_of(5);
    bool first = true;
    for (uint32_t i = 0; i < steps; i++) {
        rp_env_result a = {0}, b = {0};
        if (first) {
            env_reset(self->plain, self->seen);
            env_reset(self->drawn, self->images);
            check(self, true);
        }
        const void *action = envs_action(self->plain, &rng);
        env_step(self->plain, action, self->seen, &a);
        env_step(self->drawn, action, self->images, &b);
        assert_true(a.reward == b.reward && a.terminal == b.terminal && a.truncated == b.truncated);
        check(self, false);
        first = a.terminal || a.truncated;
    }
}

TEST(every_board_has_images)
{
    uint32_t boards = 0;
    for (const rp_env_ops *const *at = env_builtin; *at; at++) {
        static struct board board;
        if (ENV(.name = (char *)(*at)->name)->spec.observation_rank != 3)
            continue;
        open_board(&board, (*at)->name, "84");
        play(&board, 300);
        /* Each plane alone is something to see, but for the aliens of Space Invaders, which have a direction too. */
        for (uint32_t plane = 0; plane < board.planes; plane++)
            assert_true(board.grey[1u << plane] != 0);
        boards++;
    }
    assert_int_equal(boards, 6);
}

TEST(other_sides)
{
    static struct board board;
    open_board(&board, "Breakout", "10");
    play(&board, 50);
    open_board(&board, "Catch", "17");
    play(&board, 50);
}

static void expect_refusal(const char *name, rp_option *options, uint32_t n, const char *text)
{
    envs_refuse(&(struct env_config){.name = (char *)name, .options = {.data = options, .count = n}},
                RP_INVALID_ARGUMENT, text);
}

TEST(a_board_needs_a_pixel_a_cell)
{
    expect_refusal("DeepSea", (rp_option[]){{"size", "100"}, {"pixels", "84"}}, 2,
                   "environment DeepSea: option pixels is 84, less than the 100 cells of its board");
    expect_refusal("Catch", (rp_option[]){{"pixels", "9"}}, 1, "less than the 10 cells");
    expect_refusal("Freeway", (rp_option[]){{"pixels", "1000"}}, 1, "write a whole number from 0 to 256");
    expect_refusal("CartPole-v1", (rp_option[]){{"pixels", "84"}}, 1, "has no option 'pixels'");
}

TEST(images_are_scaled_for_networks)
{
    rp_option pixels = {"pixels", "84"};
    struct env_config config = {.name = "Freeway", .options = {.data = &pixels, .count = 1}};
    assert_true(env_scale(&config) == 1.0 / 255);
    pixels.value = "0";
    assert_true(env_scale(&config) == 1.0);
    pixels.value = "0.0";
    assert_true(env_scale(&config) == 1.0);
}
