/* The logs of a run: what is in the three files, how they go on after a restart, and what happens when they cannot be
 * written. With "--write FOLDER" it writes the sample that tests/integration/events_test.py reads. */
#include "agent/run/run_log.h"

#include <dirent.h>
#include <json-c/json.h>
#include <signal.h>
#include <sys/resource.h>

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
    return run_log_new(folder, "learner-0");
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

/* ---- readers ---- */

/* Every line is a JSON object, and line i of the sample comes before line i + 1; gives the number of lines. */
static int read_json(const char *path)
{
    const char *line = file_text(path);
    int64_t steps = -1;
    int n = 0;
    for (const char *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        json_tokener *tokener = json_tokener_new();
        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
        json_object *object = json_tokener_parse_ex(tokener, line, (int)(end - line));
        if (!object || !json_object_is_type(object, json_type_object))
            fail_msg("line %d of %s is no object: %.*s", n, path, (int)(end - line), line);
        assert_int_equal(json_tokener_get_parse_end(tokener), end - line);
        int64_t at = json_object_get_int64(json_object_object_get(object, "environment_steps"));
        assert_true(at > steps);
        steps = at;
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

/* Checks every frame; gives the number of those behind the first, which is the version. */
static int read_events(const char *path)
{
    size_t size, at = 0;
    const char *data = file_bytes(path, &size);
    int n = -1;
    for (uint64_t length; at < size; at += 16 + length, n++) {
        assert_true(size - at >= 16);
        memcpy(&length, data + at, 8);
        assert_int_equal(unmasked(data + at + 8), crc32c(0, data + at, 8));
        assert_true(length <= size - at - 16);
        assert_int_equal(unmasked(data + at + 12 + length), crc32c(0, data + at + 12, length));
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

/* ---- contents: tests/integration/events_test.py reads the sample ---- */

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
    const char *path = tempdir_at("learner-0.jsonl");
    assert_in_range(read_json(path), hour + 11 * 360, most);
    HAS(file_text(path), "\"environment_steps\": 7,", /* the best */
        textf("\"environment_steps\": %u,", n - 1));
    assert_int_equal(event_files(tempdir, paths, 4), 2);
    assert_in_range(read_events(paths[0]) + read_events(paths[1]), 2 * hour, 2 * most);
}

TEST(without_a_folder, tempdir_enter, tear_down)
{
    struct run_log *log = run_log_new("", "evaluator");
    write_sample(log, 0, 3);
    assert_int_equal(run_log_lost(log), 0);
    run_log_destroy(&log);
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

/* Each start has an event file of its own, also within a second. */
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
    assert_int_equal(read_json(tempdir_at("learner-0.jsonl")), SAMPLE_REPORTS);
    char paths[4][600];
    assert_int_equal(event_files(tempdir, paths, 4), 3);
    assert_int_equal(read_events(paths[0]), 10);
    assert_int_equal(read_events(paths[1]), 50);
    assert_int_equal(read_events(paths[2]), 40);
}

/* Wherever (nearly) a killed process left off, the next one gives a file of whole lines, with at most one of them missing. */
TEST(torn_tail, tempdir_enter, tear_down)
{
    const char *path = owned(strdup(tempdir_at("learner-0.jsonl")));
    struct run_log *log = open_log(tempdir);
    write_sample(log, 0, 3);
    run_log_destroy(&log);
    char *whole = owned(strdup(file_text(path)));
    size_t size = strlen(whole);
    for (size_t cut = 0; cut <= size; cut += 3) {
        int lines = 0;
        file_write(path, whole, cut, 0666);
        for (size_t i = 0; i < cut; i++)
            lines += whole[i] == '\n';
        log = run_log_new(tempdir, "learner-0");
        write_sample(log, 3, 4);
        assert_int_equal(run_log_lost(log), 0);
        run_log_destroy(&log);
        assert_int_equal(read_json(path), lines + 1);
    }
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
    assert_int_equal(read_json(tempdir_at("run/learner-0.jsonl")), 4);
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
        const char *folder = owned(strdup(tempdir_at(textf("run%d", (int)room))));
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
        int lines = read_json(file_in(folder, "learner-0.jsonl"));
        assert_int_equal(event_files(folder, paths, 2), 1);
        int events = read_events(paths[0]);
        assert_true(lines >= 3 && events >= 3);
        assert_int_equal((uint64_t)(lines + events), 18 - lost);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        uint64_t lost = 0;
        for (int part = 0; part < 2; part++) { /* it starts twice */
            struct run_log *log = run_log_new(argv[2], "learner-0");
            write_sample(log, part ? SAMPLE_REPORTS / 3 : 0, part ? SAMPLE_REPORTS : SAMPLE_REPORTS / 3);
            lost += run_log_lost(log);
            run_log_destroy(&log);
        }
        return lost > 0;
    }
    return test_run(NULL, NULL);
}
