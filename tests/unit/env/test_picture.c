/* Pictures of environments: what each of the built-in ones draws, what is shown of those that draw nothing, and that looking changes
 * nothing. */
#include "agent/env/picture.h"

#include "tests/support/envs.h"
#include "tests/support/naive.h"

static struct env_picture picture;

static struct env *open_env(const char *name)
{
    struct env *env = ENV(.name = (char *)(uintptr_t)name);
    env_seed(env, 3);
    return env;
}

/* Places an environment and takes its picture. */
static void place(const char *name, const double *state, uint32_t n)
{
    struct env *env = open_env(name);
    void *observation = owned(env_observation_new(env));
    ok(env->ops->set_state(env->self, state, n, observation));
    picture_take(env, observation, &picture);
}
#define PLACE(name, ...)                                                                                               \
    place(name, (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

/* The first shape of a kind and role. */
static const rp_shape *shape_of(rp_shape_kind kind, rp_shape_role role)
{
    for (uint32_t i = 0; i < picture.drawing.n; i++)
        if (picture.drawing.shapes[i].kind == kind && picture.drawing.shapes[i].role == role)
            return &picture.drawing.shapes[i];
    fail_msg("no such shape");
    return NULL;
}

static void is_at(double x, double y, double expected_x, double expected_y)
{
    if (!(hypot(x - expected_x, y - expected_y) < 1e-6))
        fail_msg("(%g, %g) is not (%g, %g)", x, y, expected_x, expected_y);
}

TEST(classic_shapes)
{
    PLACE("CartPole-v1", 1, 0, 0.2, 0);
    const rp_shape *cart = shape_of(RP_SHAPE_BOX, RP_ROLE_BODY), *pole = shape_of(RP_SHAPE_LINE, RP_ROLE_LIMB);
    is_at((cart->x + cart->x2) / 2, (cart->y + cart->y2) / 2, 1, 0);
    is_at(pole->x2, pole->y2, 1 + sin(0.2), cos(0.2));
    assert_true(picture.step_s == 0.02);
    PLACE("Pendulum-v1", M_PI / 2, 0);
    pole = shape_of(RP_SHAPE_LINE, RP_ROLE_LIMB);
    is_at(pole->x2, pole->y2, -1, 0); /* angles count against the clock from the top */
    PLACE("Acrobot-v1", 0, M_PI / 2, 0, 0);
    pole = shape_of(RP_SHAPE_LINE, RP_ROLE_LIMB);
    is_at(pole->x, pole->y, 0, -1);
    is_at(pole->x2, pole->y2, 1, -1);
    PLACE("MountainCar-v0", -M_PI / 6, 0); /* the valley */
    const rp_shape *car = shape_of(RP_SHAPE_LINE, RP_ROLE_BODY);
    is_at((car->x + car->x2) / 2, car->y - car->y2, -M_PI / 6, 0);
    assert_true(shape_of(RP_SHAPE_LINE, RP_ROLE_GOAL)->x == 0.5);
    PLACE("MountainCarContinuous-v0", 0, 0);
    assert_true(shape_of(RP_SHAPE_LINE, RP_ROLE_GOAL)->x == 0.45);
    car = shape_of(RP_SHAPE_LINE, RP_ROLE_BODY);
    assert_true(car->y2 > car->y); /* it stands on the slope */
}

TEST(mujoco_bodies)
{
    PLACE("CartPoleSwingUp", 0.5, M_PI, 0, 0);
    const rp_shape *cart = shape_of(RP_SHAPE_BOX, RP_ROLE_BODY), *pole = shape_of(RP_SHAPE_LINE, RP_ROLE_LIMB);
    is_at((cart->x + cart->x2) / 2, (cart->y + cart->y2) / 2, 0.5, 0);
    is_at(pole->x2, pole->y2, 0.5, -1);
    PLACE("Cheetah", 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    uint32_t lines = 0, joints = 0;
    for (uint32_t i = 0; i < picture.drawing.n; i++) {
        const rp_shape *shape = &picture.drawing.shapes[i];
        lines += shape->kind == RP_SHAPE_LINE && (shape->role == RP_ROLE_LIMB || shape->role == RP_ROLE_BODY);
        joints += shape->role == RP_ROLE_JOINT;
    }
    assert_int_equal(lines, 8); /* trunk, head, two legs of three links */
    assert_int_equal(joints, 6);
    const rp_shape *trunk = shape_of(RP_SHAPE_LINE, RP_ROLE_BODY);
    is_at(fmin(trunk->x, trunk->x2), trunk->y, 6.5, 0.7);
    assert_true(picture.drawing.left == 5 && picture.drawing.right == 9); /* the view follows */
    assert_true(fabs(picture.step_s - 0.05) < 1e-9);
}

static const uint8_t *pixel(uint32_t row, uint32_t column)
{
    return picture.rgb + 3 * (size_t)(row * picture.width + column);
}

TEST(planes_are_pixels)
{
    PLACE("Catch", 2, 3, 1);
    assert_int_equal(picture.width, 5);
    assert_int_equal(picture.height, 10);
    assert_int_equal(pixel(2, 3)[0], 255);
    assert_int_equal(pixel(9, 1)[0], 255);
    assert_int_equal(pixel(0, 0)[0], 0);
    double board[34] = {5, 5, 0, 4};
    board[4 + 12] = 1; /* one brick: second row of the wall, third column */
    place("Breakout", board, 34);
    static const uint8_t paddle[3] = {255, 255, 255}, brick[3] = {90, 210, 110};
    assert_memory_equal(pixel(9, 4), paddle, 3);
    assert_memory_equal(pixel(2, 2), brick, 3);
    assert_memory_equal(pixel(2, 3), picture_ground, 3);
}

/* An environment that has nothing but an observation. */
static struct env stub(rp_env_spec spec, void (*draw)(const void *self, rp_drawing *out))
{
    static rp_env_ops ops;
    ops = (rp_env_ops){.name = "stub", .draw = draw};
    return (struct env){.ops = &ops, .spec = spec};
}

TEST(large_images_and_numbers)
{
    struct env env = stub(
        (rp_env_spec){.observation_dtype = RP_DTYPE_UINT8, .observation_rank = 3, .observation_shape = {210, 160, 3}},
        NULL);
    uint8_t *image = owned(calloc(210 * 160, 3));
    for (size_t i = 0; i < 30 * 160; i++) /* red at the top */
        image[3 * i] = 240;
    picture_take(&env, image, &picture);
    assert_in_range(picture.height, 64, PICTURE_SIDE);
    assert_in_range(picture.width, 48, PICTURE_SIDE);
    static const uint8_t red[3] = {240, 0, 0}, black[3] = {0};
    assert_memory_equal(pixel(1, 1), red, 3);
    assert_memory_equal(pixel(picture.height - 1, 1), black, 3);

    const float numbers[] = {1, -3, 0};
    env = stub((rp_env_spec){.observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {3}},
               NULL);
    picture_take(&env, numbers, &picture);
    assert_int_equal(picture.width, 0);
    assert_true(shape_of(RP_SHAPE_BOX, RP_ROLE_BODY)->y2 == 0.25);
    assert_true(shape_of(RP_SHAPE_BOX, RP_ROLE_LIMB)->y2 == -0.375);
    assert_true(picture.step_s > 0);
}

static void draw_nonsense(const void *self, rp_drawing *out)
{
    (void)self;
    *out = (rp_drawing){.right = 1, .top = 1};
    rp_draw(out, (rp_shape){RP_SHAPE_LINE, RP_ROLE_BODY, NAN, 0, 0, 0, 1});
    rp_draw(out, (rp_shape){(rp_shape_kind)9, RP_ROLE_BODY, 0, 0, 0, 0, 1});
    rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_GOAL, 0.5, 0.5, 0, 0, 0.1});
    for (uint32_t i = 0; i < 2 * RP_MAX_SHAPES; i++)
        rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, (rp_shape_role)77, 0, 0, 0, 0, 1});
}

static void draw_nowhere(const void *self, rp_drawing *out)
{
    (void)self;
    rp_draw(out, (rp_shape){RP_SHAPE_CIRCLE, RP_ROLE_GOAL, 0, 0, 0, 0, 1});
}

TEST(nonsense_of_a_plug_in)
{
    const float number = 1;
    rp_env_spec spec = {.observation_dtype = RP_DTYPE_FLOAT32, .observation_rank = 1, .observation_shape = {1}};
    struct env env = stub(spec, draw_nonsense);
    picture_take(&env, &number, &picture);
    assert_int_equal(picture.drawing.n, 1);
    shape_of(RP_SHAPE_CIRCLE, RP_ROLE_GOAL);
    env = stub(spec, draw_nowhere); /* no frame: its numbers are shown */
    picture_take(&env, &number, &picture);
    shape_of(RP_SHAPE_BOX, RP_ROLE_BODY);
}

/* Takes a random step in both environments, and checks that they are the same. */
static bool step_twins(struct env *a, struct env *b, struct rng *rng, void *x, void *y)
{
    const void *action = envs_action(a, rng);
    rp_env_result one, other;
    env_step(a, action, x, &one);
    env_step(b, action, y, &other);
    assert_memory_equal(x, y, env_observation_bytes(&a->spec));
    assert_true(one.reward == other.reward && one.terminal == other.terminal);
    return one.terminal || one.truncated;
}

/* Every built-in environment has a picture, within its frame, whose proportions stay; and it goes on as if nobody had looked. */
TEST(looking_changes_nothing)
{
    struct rng rng = rng_of(5);
    for (const rp_env_ops *const *ops = env_builtin; *ops; ops++) {
        struct env *drawn = open_env((*ops)->name), *other = open_env((*ops)->name);
        void *x = owned(env_observation_new(drawn)), *y = owned(env_observation_new(other));
        double shape = 0;
        env_reset(drawn, x);
        env_reset(other, y);
        for (int i = 0; i < 60; i++) {
            picture_take(drawn, x, &picture);
            const rp_drawing *drawing = &picture.drawing;
            double across = drawing->right - drawing->left, up = drawing->top - drawing->bottom;
            assert_true(picture.step_s > 0 && (picture.width > 0 || drawing->n > 1));
            shape = i ? shape : up / across;
            assert_true(picture.width > 0 || fabs(up / across - shape) < 1e-9);
            for (uint32_t k = 0; picture.width == 0 && k < drawing->n; k++)
                assert_true(drawing->shapes[k].x >= drawing->left - 0.2 * across &&
                            drawing->shapes[k].x <= drawing->right + 0.2 * across);
            if (step_twins(drawn, other, &rng, x, y)) {
                env_reset(drawn, x);
                env_reset(other, y);
            }
        }
    }
}

TEST(painting)
{
    uint8_t rgb[81 * 40 * 3];
    PLACE("CartPole-v1", 0, 0, 0, 0);
    picture_paint(&picture, 81, 40, rgb);
    /* The view is 5.4 wide and 2 high, so a pixel is 0.0667: the cart lies 0.5 below its middle. */
    assert_memory_equal(rgb, picture_ground, 3);
    assert_memory_equal(rgb + 3 * ((20 + 7) * 81 + 42), picture_colours[RP_ROLE_BODY], 3);
    assert_memory_equal(rgb + 3 * ((20 - 2) * 81 + 40), picture_colours[RP_ROLE_LIMB], 3);
    PLACE("Catch", 0, 0, 2);
    picture_paint(&picture, 81, 40, rgb); /* cells of 4 x 4, in the middle */
    assert_int_equal(rgb[3 * (3 * 81 + 31)], 255);
    assert_int_equal(rgb[3 * (4 * 81 + 31)], 0);
    assert_memory_equal(rgb + 3 * 29, picture_ground, 3);
}
