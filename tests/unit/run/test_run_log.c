/* The logs of a run: what is in the three files, how they go on after a restart, and what happens when they cannot be
 * written. With "--write FOLDER" it writes the sample that tests/integration/events_test.py reads. */
#include "agent/run/run_log.h"

#include <dirent.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <signal.h>
#include <sys/resource.h>

#include "event.pb-c.h"
#include "proto/base/crc32c.h"
#include "proto/base/log.h"
#include "tests/support/tempdir.h"

#define SAMPLE_REPORTS 100

static int tear_down(void **state)
{
    log_close();
    return tempdir_leave(state);
}

static struct run_log *open_log(const char *folder)
{
    return must(run_log_new(folder, "learner-0", &err));
}

/* Report i of the sample; gives the number of scalars. */
static uint32_t sample(int i, struct run_log_at *at, struct agent_scalar scalars[3])
{
    *at = (struct run_log_at){1.7e9 + 0.5 * i, 250u * (uint64_t)i, 25u * (uint64_t)i};
    scalars[0] = (struct agent_scalar){"loss", i == 7 ? (double)NAN : i == 8 ? (double)INFINITY : 1.0 / (i + 1)};
    scalars[1] = (struct agent_scalar){"q/mean", i == 9 ? (double)-INFINITY : -0.25 * i};
    scalars[2] = (struct agent_scalar){"return", (double)i * i};
    return i < SAMPLE_REPORTS / 2 ? 2 : 3;
}

static void write_sample(struct run_log *log, int from, int to)
{
    for (int i = from; i < to; i++) {
        struct run_log_at at;
        struct agent_scalar scalars[3];
        uint32_t n = sample(i, &at, scalars);
        run_log_report(log, &at, scalars, n);
    }
}

/* The same number, as far as `relative` goes; NaN is the same as NaN. */
static void assert_number(double got, double wanted, double relative)
{
    bool same = isnan(wanted) ? isnan(got) : got == wanted || fabs(got - wanted) <= relative * fabs(wanted);
    if (!same)
        fail_msg("%.17g is not %.17g", got, wanted);
}

/* ---- readers ---- */

/* Every line is a JSON object; gives the number of lines. check may be NULL. */
static int read_json(const char *path, void (*check)(int line, json_object *object))
{
    const char *line = file_text(path);
    int n = 0;
    for (const char *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        json_tokener *tokener = json_tokener_new();
        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
        json_object *object = json_tokener_parse_ex(tokener, line, (int)(end - line));
        if (!object || !json_object_is_type(object, json_type_object))
            fail_msg("line %d of %s is no object: %.*s", n, path, (int)(end - line), line);
        assert_int_equal(json_tokener_get_parse_end(tokener), end - line);
        if (check)
            check(n, object);
        json_object_put(object);
        json_tokener_free(tokener);
    }
    assert_int_equal(*line, '\0');
    return n;
}

/* The checksum behind the masked one at `at`. */
static uint32_t unmasked(const char *at)
{
    uint32_t crc;
    memcpy(&crc, at, sizeof crc);
    crc -= UINT32_C(0xa282ead8);
    return crc >> 17 | crc << 15;
}

/* Checks the frame at *at and moves past it; gives the event, to be freed. */
static Tensorboard__Event *next_event(const char *data, size_t size, size_t *at)
{
    uint64_t length;
    assert_true(size - *at >= 16);
    memcpy(&length, data + *at, 8);
    assert_int_equal(unmasked(data + *at + 8), crc32c(0, data + *at, 8));
    assert_true(length <= size - *at - 16);
    assert_int_equal(unmasked(data + *at + 12 + length), crc32c(0, data + *at + 12, length));
    Tensorboard__Event *event = tensorboard__event__unpack(NULL, length, (const uint8_t *)data + *at + 12);
    assert_non_null(event);
    *at += 16 + length;
    return event;
}

/* The first record is the version, all others are summaries; gives the number of the others. */
static int read_events(const char *path, void (*check)(int i, const Tensorboard__Event *event))
{
    size_t size, at = 0;
    const char *data = file_bytes(path, &size);
    int n = -1;
    for (; at < size; n++) {
        Tensorboard__Event *event = next_event(data, size, &at);
        if (n < 0) {
            assert_int_equal(event->what_case, TENSORBOARD__EVENT__WHAT_FILE_VERSION);
            assert_string_equal(event->file_version, RUN_LOG_EVENT_VERSION);
        } else {
            assert_int_equal(event->what_case, TENSORBOARD__EVENT__WHAT_SUMMARY);
            if (check)
                check(n, event);
        }
        tensorboard__event__free_unpacked(event, NULL);
    }
    return n;
}

/* Paths of the event files, in TensorBoard's order. */
static int event_files(const char *of, char paths[][600], int max)
{
    const char *folder = file_in(of, "tb/learner-0");
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, alphasort), found = 0;
    assert_true(n >= 2);
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.') {
            assert_true(found < max);
            assert_memory_equal(entries[i]->d_name, "events.out.tfevents.", 20);
            snprintf(paths[found++], 600, "%s/%s", folder, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    return found;
}

/* ---- contents ---- */

static void check_sample_json(int line, json_object *object)
{
    struct run_log_at at;
    struct agent_scalar scalars[3];
    uint32_t n = sample(line, &at, scalars);
    assert_int_equal(json_object_object_length(object), 4 + (int)n);
    assert_string_equal(json_object_get_string(json_object_object_get(object, "process")), "learner-0");
    assert_number(json_object_get_double(json_object_object_get(object, "time")), at.time_s, 0);
    assert_int_equal(json_object_get_int64(json_object_object_get(object, "environment_steps")), at.environment_steps);
    assert_int_equal(json_object_get_int64(json_object_object_get(object, "learner_steps")), at.learner_steps);
    for (uint32_t i = 0; i < n; i++) {
        json_object *value;
        assert_true(json_object_object_get_ex(object, scalars[i].name, &value));
        if (isfinite(scalars[i].value))
            assert_number(json_object_get_double(value), scalars[i].value, 0);
        else
            assert_null(value);
    }
}

static void check_sample_event(int i, const Tensorboard__Event *event)
{
    struct run_log_at at;
    struct agent_scalar scalars[3];
    uint32_t n = sample(i, &at, scalars);
    assert_number(event->wall_time, at.time_s, 0);
    assert_int_equal(event->step, at.environment_steps);
    assert_int_equal(event->summary->n_value, n);
    for (uint32_t k = 0; k < n; k++) {
        const Tensorboard__Summary__Value *value = event->summary->value[k];
        assert_string_equal(value->tag, scalars[k].name);
        assert_int_equal(value->value_case, TENSORBOARD__SUMMARY__VALUE__VALUE_SIMPLE_VALUE);
        assert_number(value->simple_value, (float)scalars[k].value, 0);
    }
}

TEST(contents, tempdir_enter, tear_down)
{
    struct run_log *log = open_log(tempdir);
    write_sample(log, 0, SAMPLE_REPORTS);
    assert_int_equal(run_log_lost(log), 0);
    run_log_destroy(&log);
    assert_null(log);

    char paths[2][600];
    assert_int_equal(read_json(tempdir_at("learner-0.jsonl"), check_sample_json), SAMPLE_REPORTS);
    assert_int_equal(event_files(tempdir, paths, 2), 1);
    assert_non_null(strstr(paths[0], "/events.out.tfevents.1700000000."));
    assert_string_equal(paths[0] + strlen(paths[0]) - strlen(".learner-0"), ".learner-0");
    assert_int_equal(read_events(paths[0], check_sample_event), SAMPLE_REPORTS);
}

static double day_last_s;

static void check_day_json(int i, json_object *line)
{
    (void)i;
    day_last_s = json_object_get_double(json_object_object_get(line, "time"));
}

/* A day of a report every two seconds, with a restart: a long run does not fill the disk. */
TEST(day, tempdir_enter, tear_down)
{
    struct run_log *log = open_log(tempdir);
    const uint32_t n = 43200, hour = 1800;
    for (uint32_t i = 0; i < n; i++) {
        struct run_log_at at = {.time_s = 1700000000.0 + 2.0 * i, .environment_steps = i};
        struct agent_scalar scalar = {"return", i == 7 ? 1e6 : -(double)i};
        if (i == n / 2) {
            run_log_destroy(&log);
            log = open_log(tempdir);
        }
        run_log_report(log, &at, &scalar, 1);
    }
    assert_int_equal(run_log_lost(log), 0);
    run_log_destroy(&log);
    char paths[4][600];
    /* Every report of an hour, one in ten seconds of 11 hours, one in a minute of 12; and up to a third more until it is thinned. */
    const uint32_t most = (hour + 11 * 360 + 12 * 60) * 4 / 3;
    int lines = read_json(tempdir_at("learner-0.jsonl"), check_day_json);
    assert_in_range(lines, hour + 11 * 360, most);
    assert_true(day_last_s == 1700000000.0 + 2.0 * (n - 1));
    assert_has(file_text(tempdir_at("learner-0.jsonl")), "\"environment_steps\": 7,"); /* the best */
    assert_int_equal(event_files(tempdir, paths, 4), 2);
    assert_in_range(read_events(paths[0], NULL) + read_events(paths[1], NULL), 2 * hour, 2 * most);
}

TEST(names_of_processes, tempdir_enter, tear_down)
{
    struct run_log *log = run_log_new("", "evaluator", NULL);
    write_sample(log, 0, 3);
    assert_int_equal(run_log_lost(log), 0);
    run_log_destroy(&log);

    const char *bad[] = {"", "../x", "a/b", ".hidden", "a b", NULL};
    for (int i = 0; i < 6; i++) {
        err = (rp_error){0};
        assert_null(run_log_new(tempdir, bad[i], &err));
        assert_int_equal(err.status, RP_INVALID_ARGUMENT);
    }
}

/* Names that would break a line are refused before anything is written. */
TEST(names, tempdir_enter, tear_down)
{
    struct run_log *log = open_log(tempdir);
    const char *bad[] = {"", "a,b", "a b", "a\nb", "\"", "\\", "\xff", "caf\xc3\xa9"};
    struct run_log_at at = {1.0, 2, 3};
    log_open("/dev/null", NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct agent_scalar scalars[] = {{"fine", 1.0}, {bad[i], 1.0}};
        run_log_report(log, &at, scalars, 2);
        assert_int_equal(run_log_lost(log), i + 1);
    }
    assert_int_not_equal(access(tempdir_at("learner-0.jsonl"), F_OK), 0);
    run_log_destroy(&log);
}

/* ---- going on ---- */

TEST(resume, tempdir_enter, tear_down)
{
    const int ends[] = {10, 60, SAMPLE_REPORTS};
    int from = 0;
    for (int part = 0; part < 3; part++) {
        struct run_log *log = open_log(tempdir);
        write_sample(log, from, ends[part]);
        assert_int_equal(run_log_lost(log), 0);
        run_log_destroy(&log);
        from = ends[part];
    }
    assert_int_equal(read_json(tempdir_at("learner-0.jsonl"), check_sample_json), SAMPLE_REPORTS);
    char paths[4][600];
    assert_int_equal(event_files(tempdir, paths, 4), 3);
    assert_int_equal(read_events(paths[0], check_sample_event), 10);
    assert_int_equal(read_events(paths[1], NULL), 50);
    assert_int_equal(read_events(paths[2], NULL), 40);
}

/* Several starts within one second have event files of their own. */
TEST(same_second, tempdir_enter, tear_down)
{
    for (int i = 0; i < 3; i++) {
        struct run_log *log = open_log(tempdir);
        write_sample(log, 0, 1);
        run_log_destroy(&log);
    }
    char paths[4][600];
    assert_int_equal(event_files(tempdir, paths, 4), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read_events(paths[i], check_sample_event), 1);
}

/* Wherever (nearly) a killed process left off, the next one gives a file of whole lines, with at most one of them missing. */
TEST(torn_tail, tempdir_enter, tear_down)
{
    char path[600];
    snprintf(path, sizeof path, "%s/learner-0.jsonl", tempdir);
    struct run_log *log = open_log(tempdir);
    write_sample(log, 0, 3);
    run_log_destroy(&log);
    char *whole = strdup(file_text(path));
    size_t size = strlen(whole);
    for (size_t cut = 0; cut <= size; cut += 3) {
        int lines = 0;
        file_write(path, whole, cut, 0666);
        for (size_t i = 0; i < cut; i++)
            lines += whole[i] == '\n';
        log = run_log_new(tempdir, "learner-0", NULL);
        write_sample(log, 3, 4);
        assert_int_equal(run_log_lost(log), 0);
        run_log_destroy(&log);
        assert_int_equal(read_json(path, NULL), lines + 1);
    }
    free(whole);
}

/* ---- what cannot be written ---- */

static int count(const char *path, const char *what)
{
    int n = 0;
    for (const char *at = file_text(path); (at = strstr(at, what)); at++)
        n++;
    return n;
}

/* A folder that cannot be made is counted and logged once, and reports continue as soon as it can. */
TEST(unwritable, tempdir_enter, tear_down)
{
    file_put(tempdir_at("run"), "");
    log_set_level(LEVEL_INFO);
    assert_int_equal(log_open(tempdir_at("log"), NULL), RP_OK);
    struct run_log *log = open_log(tempdir_at("run"));
    write_sample(log, 0, 4);
    assert_int_equal(run_log_lost(log), 8);
    unlink(tempdir_at("run"));
    write_sample(log, 0, 4);
    assert_int_equal(run_log_lost(log), 8);
    run_log_destroy(&log);
    assert_int_equal(read_json(tempdir_at("run/learner-0.jsonl"), check_sample_json), 4);
    log_close();
    assert_int_equal(count(tempdir_at("log"), "A0301"), 1);
    assert_int_equal(count(tempdir_at("log"), "A0302 parts of reports were lost process=learner-0 count=8"), 1);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* A disk that fills up in the middle of a record, at many places: files stay whole, and go on when there is room. */
TEST(full_disk, tempdir_enter, tear_down)
{
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t room = 0; room < 400; room += 17) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s/run%d", tempdir, (int)room);
        struct run_log *log = open_log(folder);
        /* Its lines could not be written either. */
        log_open("/dev/null", NULL);
        limit_files(room);
        write_sample(log, 47, 53);
        limit_files(RLIM_INFINITY);
        uint64_t lost = run_log_lost(log);
        assert_true(lost > 0);
        write_sample(log, 53, 56);
        assert_int_equal(run_log_lost(log), lost);
        run_log_destroy(&log);

        char paths[2][600];
        int lines = read_json(file_in(folder, "learner-0.jsonl"), NULL);
        assert_int_equal(event_files(folder, paths, 2), 1);
        int events = read_events(paths[0], NULL);
        assert_true(lines >= 3 && events >= 3);
        assert_int_equal((uint64_t)(lines + events), 18 - lost);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        struct run_log *log = run_log_new(argv[2], "learner-0", NULL);
        write_sample(log, 0, SAMPLE_REPORTS);
        uint64_t lost = run_log_lost(log);
        run_log_destroy(&log);
        return lost > 0;
    }
    return test_run(NULL, NULL);
}
