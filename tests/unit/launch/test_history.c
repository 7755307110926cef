/* metrics.jsonl: what thinning keeps, against a model that looks at all lines at once; a day's size; crashes; means over time. */
#include <sys/stat.h>

#include "agent/launch/series.h"
#include "agent/run/thin.h"
#include "proto/base/rng.h"
#include "tests/support/statuses.h"
#include "tests/support/tempdir.h"

static char path[96];

static int enter(void **state)
{
    int rc = tempdir_enter(state);
    snprintf(path, sizeof path, "%s/metrics.jsonl", tempdir);
    return rc;
}

#define KEY "\"elapsed_s\": "

static void open_history(struct line_file *history)
{
    line_file_init(history, strdup(path), KEY);
    assert_true(line_file_open(history));
}

/* ---- the model ---- */

struct point {
    double at, event, memory, cpu;
};

/* Every line that was ever added, in order. */
struct model {
    struct point *points;
    uint32_t n;
};

static bool is_event(const struct model *self, uint32_t i)
{
    return i > 0 && self->points[i].event > 0 && self->points[i].event != self->points[i - 1].event;
}

static bool kept(const struct model *self, uint32_t i, double now, uint32_t events_after)
{
    double at = self->points[i].at, age = now - at, width;
    bool most_memory = self->points[i].memory > 0, most_cpu = self->points[i].cpu > 0;
    if (i == 0 || age < 3600 || (is_event(self, i) && events_after < THIN_EVENTS))
        return true;
    width = age < 12 * 3600 ? 10 : age < 7 * 86400 ? 60 : 600;
    if (floor(at / width) != floor(self->points[i - 1].at / width))
        return true;
    for (uint32_t k = 0; k < self->n && (most_memory || most_cpu); k++) {
        most_memory = most_memory && (self->points[k].memory < self->points[i].memory ||
                                      (self->points[k].memory == self->points[i].memory && k >= i));
        most_cpu = most_cpu && (self->points[k].cpu < self->points[i].cpu ||
                                (self->points[k].cpu == self->points[i].cpu && k >= i));
    }
    return most_memory || most_cpu;
}

/* Sets keep for each line and returns their number. */
static uint32_t model_thin(const struct model *self, bool *keep)
{
    double now = self->points[self->n - 1].at;
    uint32_t n = 0, events = 0;
    for (uint32_t i = self->n; i-- > 0;) {
        keep[i] = kept(self, i, now, events);
        n += keep[i];
        events += is_event(self, i);
    }
    return n;
}

static void format_point(char *out, size_t size, const struct point *p, uint32_t i)
{
    snprintf(out, size,
             "{\"phase\": \"running\", \"elapsed_s\": %.3f, \"i\": %u, \"waits\": \"\\\"elapsed_s\\\": 5\", "
             "\"memory\": %.0f, "
             "\"cpu\": %.3f, \"event\": \"x\", \"event_unix_s\": %.1f}",
             p->at, i, p->memory, p->cpu, p->event);
}

/* The lines of the file are those that the model keeps. */
static void check_file(const struct model *model)
{
    bool *keep = calloc(model->n, sizeof *keep);
    char line[512], wanted[512];
    uint32_t n = model_thin(model, keep), seen = 0, i = 0;
    FILE *file = fopen(path, "re");
    assert_true(file && keep);
    for (; fgets(line, sizeof line, file); i++, seen++) {
        while (i < model->n && !keep[i])
            i++;
        assert_true(i < model->n);
        format_point(wanted, sizeof wanted - 2, &model->points[i], i);
        strcat(wanted, "\n");
        assert_string_equal(line, wanted);
    }
    assert_int_equal(seen, n);
    fclose(file);
    free(keep);
}

/* Runs of up to ten days with irregular steps, events, crashes and thinning at any time. */
TEST(model, enter, tempdir_leave)
{
    struct rng rng;
    char line[512];
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct line_file history;
        struct model model = {.points = calloc(8000, sizeof *model.points)};
        double at = 0, event = 0, span = seed % 3 == 0 ? 240 : seed % 3 == 1 ? 2 : 20;
        uint32_t often = seed % 2 == 0 ? 4 : 50;
        rng_seed(&rng, seed);
        print_message("seed %llu\n", (unsigned long long)seed);
        open_history(&history);
        for (model.n = 0; model.n < 8000;) {
            at += span * rng_unit(&rng);
            event += rng_below(&rng, often) == 0;
            struct point *p = &model.points[model.n];
            *p = (struct point){floor(at * 1000) / 1000, event, (double)rng_below(&rng, 1000000), rng_unit(&rng)};
            p->cpu = floor(p->cpu * 1000) / 1000;
            format_point(line, sizeof line, p, model.n++);
            line_file_add(&history, line);
            if (rng_below(&rng, 2000) == 0) { /* the launcher was killed in the middle of a line */
                assert_int_equal(write(history.file.fd, "{\"elapsed_s\": 12", 15), 15);
                line_file_fini(&history);
                open_history(&history);
            }
        }
        assert_true(line_file_thin(&history));
        check_file(&model);
        line_file_fini(&history);
        unlink(path);
        free(model.points);
    }
}

/* ---- a day of a run ---- */

/* Means over points and their time, as a chart shows them. */
static double mean_over_time(const struct series *self, uint32_t column)
{
    double sum = 0, weights = 0;
    for (uint32_t i = 0; i < self->n; i++) {
        sum += self->weights[i] * self->columns[column][i];
        weights += self->weights[i];
    }
    return sum / weights;
}

static void take_peak(void *ctx, struct json_object *line, double *values)
{
    double *peak = ctx;
    (void)line;
    *peak = fmax(*peak, values[1]);
}

TEST(day, enter, tempdir_leave)
{
    struct line_file history;
    struct status status =
        status_of("\"name\": \"cartpole-dqn\", \"folder\": \"runs/cartpole-dqn-20260131\", \"phase\": \"running\", "
                  "\"steps_rate\": 5183.330877316924, \"samples_rate\": 170225.4201097958, "
                  "\"spi\": 32.08931374943307, \"actor_idle\": 0.9670036249599198, "
                  "\"learner_idle\": 0.20695350792999345, \"cpu\": 1.9384756, "
                  "\"waits\": \"the actors wait for samples: the limiter of table 'replay' allows an insert only after "
                  "learners have taken more samples\", \"advice\": \"More learners, or fewer actors, would help.\"");
    struct stat file;
    off_t most = 0;
    ino_t first = 0;
    open_history(&history);
    assert_int_equal(stat(path, &file), 0);
    first = file.st_ino;
    FILE *reader = fopen(path, "re"); /* one that read on while the file was replaced */
    for (int i = 1; i <= 86400; i++) {
        status.unix_s = 1794772775.5966854 + i;
        status.elapsed_s = i;
        status.steps = (uint64_t)(5183.33 * i);
        status.progress = i / 3e5;
        status.inserts_rate = i < 43200 ? 1000 : 3000;
        status.memory = (i == 7777 ? 501 : 500) << 20; /* a peak of one second */
        char *text = status_to_json(&status, false);
        line_file_add(&history, text);
        free(text);
        if (i % 600 == 0) {
            assert_int_equal(stat(path, &file), 0);
            most = file.st_size > most ? file.st_size : most;
        }
    }
    line_file_fini(&history);
    assert_true(file.st_ino != first && reader && fclose(reader) == 0);
    print_message("a day: %lld bytes at most, %lld at the end\n", (long long)most, (long long)file.st_size);
    assert_true(most < 15 * 1000 * 1000);

    struct series series;
    static const char *const names[] = {"elapsed_s", "memory"};
    double peak = 0;
    series_read(&series, &(struct series_source){path, names, 2, .line = take_peak, .ctx = &peak});
    series_fini(&series);
    assert_true(peak == 501 << 20);
    series_read_history(&series, tempdir);
    assert_true(series.n > 300);
    /* Twelve hours at 1000/s and twelve at 3000/s, of which far fewer lines of the first half are left. */
    assert_true(fabs(mean_over_time(&series, HISTORY_INSERTS) - 2000) < 10);
    series_fini(&series);
}

/* ---- failures ---- */

TEST(refused, enter, tempdir_leave)
{
    struct line_file history;
    char blocked[128];
    line_file_init(&history, strdup("/nowhere/metrics.jsonl"), KEY);
    assert_false(line_file_open(&history));
    assert_false(line_file_add(&history, "{}"));
    line_file_fini(&history);
    open_history(&history);
    snprintf(blocked, sizeof blocked, "%s.tmp", path);
    assert_int_equal(mkdir(blocked, 0700), 0);
    line_file_add(&history, "{\"elapsed_s\": 1}");
    assert_false(line_file_thin(&history));
    line_file_add(&history, "{\"elapsed_s\": 2}"); /* goes on in the old file */
    assert_int_equal(rmdir(blocked), 0);
    assert_true(line_file_thin(&history));
    assert_int_equal(history.kept, 2);
    line_file_fini(&history);
}
