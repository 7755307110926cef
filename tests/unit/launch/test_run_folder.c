/* A run's folder: made, found, locked, and its state read back, also when it is damaged. */
#include <errno.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "agent/launch/process/run_folder.h"
#include "tests/support/facts.h"
#include "tests/support/tempdir.h"

static int lock_error; /* errno of all locks; 0: they work */

/* In place of the C library's: some file systems have no locks. */
int flock(int fd, int operation)
{
    if (lock_error == 0)
        return (int)syscall(SYS_flock, fd, operation);
    errno = lock_error;
    return -1;
}

static int enter(void **state)
{
    return tempdir_enter(state) == 0 && chdir(tempdir) == 0 ? 0 : -1;
}

static int leave(void **state)
{
    return chdir("/") == 0 ? tempdir_leave(state) : -1;
}

TEST(create)
{
    char first[FOLDER_SIZE], second[FOLDER_SIZE], logs[FOLDER_SIZE + 16];
    assert_int_equal(run_folder_create("a/runs", "my run/../x", NULL, first, &err), RP_OK);
    assert_ptr_equal(strstr(first, "a/runs/my-run-..-x-"), first);
    assert_int_equal(access(run_folder_path(logs, sizeof logs, first, "logs"), W_OK), 0);
    /* Two in one second do not share a folder. */
    assert_int_equal(run_folder_create("a/runs", "my run/../x", NULL, second, &err), RP_OK);
    assert_string_not_equal(first, second);
    assert_int_equal(run_folder_create("a/runs", "x", "given/here", first, &err), RP_OK);
    assert_string_equal(first, "given/here");
}

TEST(refused)
{
    char folder[FOLDER_SIZE], file[FOLDER_SIZE];
    struct folder_state run = {.pid = 7};
    assert_int_equal(run_folder_create("runs", "x", "mine", folder, &err), RP_OK);
    assert_int_equal(run_folder_write_state(folder, &run, &err), RP_OK);
    assert_int_equal(run_folder_create("runs", "x", "mine", folder, &err), RP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.text, "replay-launch resume mine"));
    assert_int_equal(run_folder_write(".", "file", "", &err), RP_OK);
    must_fail(run_folder_create("file", "x", NULL, file, &err), RP_IO, "cannot be made");
}

TEST(find)
{
    char made[FOLDER_SIZE], found[FOLDER_SIZE];
    struct folder_state run = {.pid = 7};
    assert_int_equal(run_folder_find("none", NULL, found, &err), RP_NOT_FOUND);
    assert_true(facts_within(err.text, "there is no run in 'none'"));
    assert_int_equal(run_folder_create("b", "x", NULL, made, &err), RP_OK);
    assert_int_equal(run_folder_write_state(made, &run, &err), RP_OK);
    run_folder_point_latest("b", made);
    assert_int_equal(run_folder_find("b", NULL, found, &err), RP_OK);
    assert_string_equal(found, made); /* not the link, which moves on */
    assert_int_equal(run_folder_find("b", made + 2, found, &err), RP_OK);
    assert_string_equal(found, made);
    assert_int_equal(run_folder_find("elsewhere", made, found, &err), RP_OK);
    assert_string_equal(found, made);
    assert_int_equal(run_folder_find("b", "nothing", found, &err), RP_NOT_FOUND);
}

/* A file of the user's that happens to be called latest stays. */
TEST(latest_is_not_ours)
{
    char made[FOLDER_SIZE];
    struct stat st;
    assert_int_equal(run_folder_create("c", "x", NULL, made, &err), RP_OK);
    assert_int_equal(run_folder_write("c", "latest", "mine", &err), RP_OK);
    run_folder_point_latest("c", made);
    assert_int_equal(lstat("c/latest", &st), 0);
    assert_true(S_ISREG(st.st_mode));
}

TEST(lock)
{
    int lock = -1, other = -1, status;
    assert_false(run_folder_locked("."));
    assert_int_equal(run_folder_lock(".", &lock, &err), RP_OK);
    assert_true(run_folder_locked("."));
    pid_t child = fork();
    if (child == 0)
        _exit(run_folder_lock(".", &other, &err) == RP_FAILED_PRECONDITION && other == -1 ? 0 : 1);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    /* Another user, who may only read, sees the same. */
    assert_int_equal(chmod(".", 0755), 0);
    assert_int_equal(chmod("launch.lock", 0444), 0);
    for (int held = 1; held >= 0; held--) {
        child = fork();
        if (child == 0)
            _exit((geteuid() == 0 && seteuid(65534) != 0) || run_folder_locked(".") != held);
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
        if (held)
            close(lock);
    }
    assert_false(run_folder_locked("."));
}

TEST(no_locks)
{
    static const int errors[] = {ENOSYS, ENOLCK, EOPNOTSUPP};
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        int lock = -1;
        lock_error = errors[i];
        assert_int_equal(run_folder_lock(".", &lock, &err), RP_IO);
        assert_int_equal(lock, -1);
        assert_false(run_folder_locked("."));
    }
    lock_error = 0;
}

TEST(state)
{
    struct folder_state out,
        run = {.pid = 4711, .legs = 3, .elapsed_s = 12.5, .steps = UINT64_C(1) << 60, .learner_steps = 99, .actors = 8};
    run.learners = 2;
    run.auto_actors = run.done = true;
    snprintf(run.here, sizeof run.here, "/a \"quoted\" place");
    snprintf(run.cwd, sizeof run.cwd, "/somewhere/else");
    snprintf(run.command, sizeof run.command, "replay-launch x.yaml");
    snprintf(run.node, sizeof run.node, "n1.cluster");
    assert_int_equal(run_folder_write_state(".", &run, &err), RP_OK);
    assert_int_equal(run_folder_read_state(".", &out, &err), RP_OK);
    assert_memory_equal(&out, &run, sizeof run);
    assert_true(run_folder_is_elsewhere(&out));
    run_folder_this_node(out.node);
    assert_false(run_folder_is_elsewhere(&out));
    static const char *const damaged[] = {"",
                                          "{",
                                          "[]",
                                          "null",
                                          "{\"pid\": \"x\", \"elapsed_s\": -1, \"here\": 7}",
                                          "{\"pid\": -5, \"legs\": 1e99, \"elapsed_s\": \"nan\"}",
                                          "{\"actors\": 4000000000, \"learners\": 4097, \"steps\": -3}"};
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        assert_int_equal(run_folder_write(".", "launch.json", damaged[i], &err), RP_OK);
        rp_status status = run_folder_read_state(".", &out, &err);
        assert_int_equal(status, i < 4 ? RP_NOT_FOUND : RP_OK);
        assert_string_equal(out.node, ""); /* as in files of older versions: here */
        assert_false(run_folder_is_elsewhere(&out));
        assert_int_equal(out.pid, 0);                   /* never a process that is not ours */
        assert_int_equal(out.actors + out.learners, 0); /* nor more of them than a machine can bear */
    }
}

int main(void)
{
    return test_run(enter, leave);
}
