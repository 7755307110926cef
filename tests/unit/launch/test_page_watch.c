/* The page of a run on another machine: what its folder says, without a question to a broker that is not here. */
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "agent/launch/process/run_folder.h"
#include "agent/launch/process/status.h"
#include "agent/launch/run_page.h"
#include "tests/support/parsed.h"
#include "tests/support/tempdir.h"

/* A run as its folder shows it, with a status of this age. */
static void write_run(const char *node, enum phase phase, time_t age_s)
{
    struct folder_state state = {.pid = 7, .legs = 1};
    struct status status = {.phase = phase};
    snprintf(state.node, sizeof state.node, "%s", node);
    snprintf(state.service, sizeof state.service, "tcp://127.0.0.1:1");
    assert_int_equal(run_folder_write_state(tempdir, &state, &err), RP_OK);
    file_put(tempdir_at(FOLDER_STATUS), owned(status_to_json(&status, true)));
    struct timespec times[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};
    assert_int_equal(utimensat(AT_FDCWD, tempdir_at(FOLDER_STATUS), times, 0), 0);
}

/* What the page says: whether the run is alive, and on which other machine. */
static void assert_page(bool alive, const char *node)
{
    const struct run_page_options options = {.address = "127.0.0.1:0", .folder = tempdir};
    struct run_page *page = must(run_page_start(&options, &err));
    json_object *root = parsed(textf("%s}", (const char *)owned(run_page_state(page))));
    assert_int_equal(json_object_get_boolean(parsed_at(root, "/run_alive")), alive);
    assert_string_equal(parsed_text(root, "/elsewhere"), node);
    assert_null(json_object_object_get(root, "broker"));
    assert_non_null(parsed_at(root, "/run"));
    run_page_stop(&page);
}

TEST(elsewhere, tempdir_enter, tempdir_leave)
{
    char here[FOLDER_NODE];
    run_folder_this_node(here);
    write_run("n1.cluster", PHASE_RUNNING, 2);
    assert_page(true, "n1.cluster");
    write_run("n1.cluster", PHASE_RUNNING, 60);
    assert_page(false, "n1.cluster");
    write_run("n1.cluster", PHASE_DONE, 2);
    assert_page(false, "n1.cluster");
    write_run(here, PHASE_RUNNING, 2); /* here, the lock is right */
    assert_page(false, "");
    write_run("", PHASE_RUNNING, 2);
    assert_page(false, "");
}
