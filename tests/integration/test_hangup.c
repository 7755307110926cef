/* SIGHUP: the broker opens its log anew, at any time, and goes on to its last checkpoint. */

#include <sys/wait.h>

#include "replay/replay.h"
#include "tests/support/process.h"
#include "tests/support/tempdir.h"

#define TABLES "  - {name: t, max_size: 100, limiter: {kind: none}}\n"

struct file_text {
    const char *path, *text;
};

static int has_text(void *ctx)
{
    const struct file_text *self = ctx;
    return strstr(file_text(self->path), self->text) != NULL;
}

static void await_text(const char *path, const char *text)
{
    struct file_text wanted = {path, text};
    if (!process_await(has_text, &wanted))
        fail_msg("%s has no line with %s", path, text);
}

TEST(a_hangup_opens_the_log_anew, tempdir_enter, tempdir_leave)
{
    char path[96], more[300];
    snprintf(path, sizeof path, "%s/broker.log", tempdir);
    snprintf(more, sizeof more, "log: {file: %s}\nfolder: %s/data\njournal: off\n", path, tempdir);
    struct broker_process broker;
    broker_process_start(&broker, TABLES, more);
    await_text(path, "B0001");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rename(path, tempdir_at("broker.log.1")), 0);
        assert_int_equal(kill(broker.pid, SIGHUP), 0);
        await_text(path, "L0002");
    }
    rp_client *client = must(rp_client_connect(broker.service, NULL, WAIT, &err));
    rp_client_destroy(&client);
    for (int i = 0; i < 100; i++)
        kill(broker.pid, SIGHUP);
    kill(broker.pid, SIGTERM);
    for (int i = 0; i < 100; i++) /* also while it ends */
        kill(broker.pid, SIGHUP);
    int status = broker_process_stop(&broker, SIGHUP);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    await_text(path, "B0002");
    assert_true(file_exists(tempdir_at("data/checkpoint-00000001.replay")));
    broker_process_fini(&broker);
}
