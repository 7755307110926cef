/* best.weights: whatever order evaluations come in, and whenever its owner starts again, it holds the best of them. */
#include "agent/run/best.h"

#include <sys/stat.h>

#include "tests/support/naive.h"
#include "tests/support/tempdir.h"

#define NUMBERS 7

struct policy {
    float numbers[NUMBERS];
    struct tensor tensor;
};

/* Parameters that tell of which evaluation they are. */
static void policy_init(struct policy *self, uint32_t of)
{
    *self = (struct policy){.tensor = {.dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {NUMBERS}}};
    snprintf(self->tensor.name, sizeof self->tensor.name, "q/layer0/weight");
    self->tensor.data = self->numbers;
    for (uint32_t i = 0; i < NUMBERS; i++)
        self->numbers[i] = (float)of + (float)i / NUMBERS;
}

static void check_file(const char *path, const struct best *expected, uint32_t of)
{
    struct best read;
    struct policy wanted, got;
    uint64_t steps = 0;
    assert_int_equal(best_read(path, &read, &err), RP_OK);
    assert_true(read.value == expected->value);
    assert_int_equal(read.episodes, expected->episodes);
    assert_int_equal(read.environment_steps, expected->environment_steps);
    assert_int_equal(read.learner_steps, expected->learner_steps);
    policy_init(&wanted, of);
    policy_init(&got, 0);
    struct tensor tensors[] = {got.tensor, {.name = "steps", .dtype = RP_DTYPE_UINT64, .rank = 1, .shape = {1}}};
    tensors[1].data = &steps; /* as an actor that uses the file asks for it */
    assert_int_equal(weights_read_file(path, tensors, 2, &err), RP_OK);
    assert_memory_equal(got.numbers, wanted.numbers, sizeof wanted.numbers);
    assert_int_equal(steps, expected->learner_steps);
}

/* Against a list of all evaluations. The owner starts again now and then; some returns are equal, some are no number. */
TEST(is_the_best_of_all, tempdir_enter, tempdir_leave)
{
    struct rng rng = rng_of(11);
    struct best_file file;
    struct best best = {0};
    uint32_t best_of = 0;
    bool some = false;
    best_file_open(&file, tempdir, false);
    for (uint32_t i = 1; i <= 300; i++) {
        uint64_t random = rng_next(&rng);
        const struct best fresh = {.value = random % 17 == 0 ? NAN : (double)(random >> 32 & 63) - 40.0,
                                   .episodes = i % 20 + 1,
                                   .environment_steps = 100 * i,
                                   .learner_steps = 10 * i};
        struct policy policy;
        policy_init(&policy, i);
        best_file_offer(&file, &policy.tensor, 1, &fresh);
        if (!isnan(fresh.value) && (!some || fresh.value >= best.value)) {
            best = fresh;
            best_of = i;
            some = true;
        }
        if (random % 5 == 0)
            best_file_open(&file, tempdir, false);
        assert_int_equal(file.known, some);
        if (some)
            check_file(file.path, &best, best_of);
    }
    best_file_open(&file, tempdir, true);
    assert_false(file.known);
    assert_int_not_equal(access(file.path, F_OK), 0);
}

TEST(without_a_folder)
{
    struct best_file file;
    struct policy policy;
    policy_init(&policy, 1);
    best_file_open(&file, "", false);
    best_file_offer(&file, &policy.tensor, 1, &(struct best){.value = 1});
    assert_false(file.known);
    best_file_open(&file, NULL, true);
    best_file_offer(&file, &policy.tensor, 1, &(struct best){.value = 1});
    assert_false(file.known);
}

static void damage(const char *path, long at)
{
    FILE *out = fopen(path, "r+");
    assert_non_null(out);
    assert_int_equal(fseek(out, at, SEEK_SET), 0);
    assert_int_equal(fputc(0xa5, out), 0xa5);
    assert_int_equal(fclose(out), 0);
}

/* A file that is damaged, and one that is no best.weights, count as none. */
TEST(damaged, tempdir_enter, tempdir_leave)
{
    struct best_file file;
    struct policy policy;
    policy_init(&policy, 3);
    best_file_open(&file, tempdir, false);
    best_file_offer(&file, &policy.tensor, 1, &(struct best){.value = 100});
    damage(file.path, 100);
    best_file_open(&file, tempdir, false);
    assert_false(file.known);
    best_file_offer(&file, &policy.tensor, 1, &(struct best){.value = 2});
    check_file(file.path, &(struct best){.value = 2}, 3);
    assert_int_equal(weights_write_file(file.path, &policy.tensor, 1, &err), RP_OK);
    best_file_open(&file, tempdir, false);
    assert_false(file.known);
}

/* What cannot be written does not count as kept: the next evaluation that is better than the file tries again. */
TEST(disk_fails, tempdir_enter, tempdir_leave)
{
    struct best_file file;
    struct policy first, second, third;
    policy_init(&first, 1);
    policy_init(&second, 2);
    policy_init(&third, 3);
    best_file_open(&file, tempdir, false);
    best_file_offer(&file, &first.tensor, 1, &(struct best){.value = 1, .learner_steps = 1});
    const char *blocked = textf("%s.tmp", file.path);
    assert_int_equal(mkdir(blocked, 0777), 0); /* stands where the new file is made */
    best_file_offer(&file, &second.tensor, 1, &(struct best){.value = 9, .learner_steps = 2});
    check_file(file.path, &(struct best){.value = 1, .learner_steps = 1}, 1);
    assert_int_equal(rmdir(blocked), 0);
    best_file_offer(&file, &third.tensor, 1, &(struct best){.value = 5, .learner_steps = 3});
    check_file(file.path, &(struct best){.value = 5, .learner_steps = 3}, 3);
}

/* A learner's whole state becomes best.weights, with everything that it holds. */
TEST(from_a_state, tempdir_enter, tempdir_leave)
{
    const char *from = owned(strdup(tempdir_at("learner.weights"))), *to = owned(strdup(tempdir_at("best.weights")));
    struct policy policy;
    float moments[3] = {1, 2, 3}, read[3] = {0};
    uint64_t steps = 77;
    policy_init(&policy, 8);
    struct tensor tensors[] = {policy.tensor,
                               {.name = "adam/m", .dtype = RP_DTYPE_FLOAT32, .rank = 1, .shape = {3}},
                               {.name = "steps", .dtype = RP_DTYPE_UINT64, .rank = 1, .shape = {1}}};
    tensors[1].data = moments;
    tensors[2].data = &steps;
    const struct best best = {.value = -3.5, .episodes = 4, .environment_steps = 5, .learner_steps = 77};
    assert_int_equal(best_write_from(to, from, &best, &err), RP_NOT_FOUND);
    assert_int_equal(weights_write_file(from, tensors, 3, &err), RP_OK);
    for (int again = 0; again < 2; again++) { /* also from a file that has an evaluation already */
        assert_int_equal(best_write_from(to, again ? to : from, &best, &err), RP_OK);
        check_file(to, &best, 8);
        tensors[1].data = read;
        assert_int_equal(weights_read_file(to, &tensors[1], 1, &err), RP_OK);
        assert_memory_equal(read, moments, sizeof moments);
    }
    damage(from, 90);
    assert_int_equal(best_write_from(to, from, &best, &err), RP_DATA_LOSS);
    check_file(to, &best, 8);
}
