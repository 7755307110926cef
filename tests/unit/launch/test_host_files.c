/* Files between a host and home, with the real node agent, and what a node agent that means harm can do with them. */
#include <sys/stat.h>

#include "agent/launch/host/host_file.h"
#include "tests/support/hostbed.h"

FIXTURE(struct hostbed, hostbed_set_up, hostbed_tear_down)

/* What a file of the run's folder holds. */
static const char *copy_of(const struct hostbed *f, const char *name)
{
    return file_text(file_in(f->folder, name));
}

CASE(mirror)
{
    struct process a;
    hostbed_connect(f, 0);
    const char *work = host_info(f->host)->facts.work;
    const char *script = textf(
        "cd '%s' && echo 1 > a.jsonl && mkdir -p a/deep/er && echo x > a/deep/er/file && echo secret > config.yaml && "
        "mkdir keys && echo k > keys/k && echo hidden > .hidden && echo t > a.w.tmp && echo old > a.w && "
        "ln -s /etc/passwd link && "
        "read x < go1; echo 2 >> a.jsonl; echo newer > a.w.tmp; mv a.w.tmp a.w; read x < go2; echo 3 > a.jsonl; exit 4",
        work);
    assert_int_equal(mkfifo(file_in(work, "go1"), 0600), 0);
    assert_int_equal(mkfifo(file_in(work, "go2"), 0600), 0);
    hostbed_shell(f, &a, "a", script);
    hostbed_await(f, strcmp(copy_of(f, "a.jsonl"), "1\n") == 0);
    hostbed_await(f, strcmp(copy_of(f, "a/deep/er/file"), "x\n") == 0);
    hostbed_await(f, strcmp(copy_of(f, "a.w"), "old\n") == 0);
    struct stat before, after;
    assert_int_equal(stat(file_in(f->folder, "a.jsonl"), &before), 0);
    file_put(file_in(work, "go1"), "\n");
    hostbed_await(f, strcmp(copy_of(f, "a.jsonl"), "1\n2\n") == 0);
    assert_int_equal(stat(file_in(f->folder, "a.jsonl"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino); /* appended */
    hostbed_await(f, strcmp(copy_of(f, "a.w"), "newer\n") == 0);
    file_put(file_in(work, "go2"), "\n");
    assert_int_equal(hostbed_await_end(f, &a), 4 << 8);
    assert_string_equal(copy_of(f, "a.jsonl"), "3\n"); /* at the latest with the end */
    static const char *const absent[] = {"config.yaml", "keys", ".hidden", "a.w.tmp", "link", "go1"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_false(file_exists(file_in(f->folder, absent[i])));
}

/* The end of a process comes after the last byte of what it has written and printed. */
CASE(end_after_files)
{
    struct process a;
    hostbed_connect(f, 0);
    const char *script =
        textf("head -c 5000000 /dev/urandom > '%s/a.big'; head -c 3000000 /dev/zero; cksum < '%s/a.big' > '%s/sum'",
              host_info(f->host)->facts.work, host_info(f->host)->facts.work, f->dir);
    hostbed_shell(f, &a, "a", script);
    assert_int_equal(hostbed_await_end(f, &a), 0);
    assert_int_equal(file_size(file_in(f->dir, "a.log")), 3000000);
    assert_int_equal(system(textf("cksum < '%s/a.big' | cmp - '%s/sum'", f->folder, f->dir)), 0);
}

/* A process goes on with its own files after its host was lost, and a file that is gone at home comes back with its next bytes. */
CASE(own_files)
{
    struct process a;
    const char *script = NULL;
    hostbed_connect(f, 0);
    for (int round = 1; round <= 3; round++) {
        script = textf("echo %d >> '%s/actor-0.jsonl'", round, host_info(f->host)->facts.work);
        hostbed_shell(f, &a, "actor-0", script);
        assert_int_equal(hostbed_await_end(f, &a), 0);
        if (round == 2)
            break;
        host_close(f->host);
        assert_int_equal(host_info(f->host)->state, HOST_ABSENT);
        host_open(f->host, clock_ns());
        hostbed_await(f, host_info(f->host)->state == HOST_READY);
    }
    assert_int_equal(host_info(f->host)->times, 2);
    assert_string_equal(copy_of(f, "actor-0.jsonl"), "1\n2\n");
    unlink(file_in(f->folder, "actor-0.jsonl")); /* the host has it still */
    hostbed_shell(f, &a, "actor-0", script);
    assert_int_equal(hostbed_await_end(f, &a), 0);
    hostbed_await(f, strcmp(copy_of(f, "actor-0.jsonl"), "1\n2\n2\n") == 0);
}

/* A copy at home that somebody has cut is made whole again. */
CASE(copy_cut)
{
    struct process a;
    hostbed_connect(f, 0);
    const char *script = textf("cd '%s'; echo one > a.x; read y < go; echo two >> a.x", host_info(f->host)->facts.work);
    assert_int_equal(mkfifo(file_in(host_info(f->host)->facts.work, "go"), 0600), 0);
    hostbed_shell(f, &a, "a", script);
    hostbed_await(f, strcmp(copy_of(f, "a.x"), "one\n") == 0);
    file_put(file_in(f->folder, "a.x"), "on");
    file_put(file_in(host_info(f->host)->facts.work, "go"), "\n");
    hostbed_await(f, strcmp(copy_of(f, "a.x"), "one\ntwo\n") == 0);
    assert_int_equal(hostbed_await_end(f, &a), 0);
}

CASE(send_files)
{
    struct process a;
    struct stat info;
    size_t size = 3000001;
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    file_write(file_in(f->dir, "key"), "secret\n", 7, 0600);
    file_write(file_in(f->dir, "empty"), "", 0, 0644);
    file_write(file_in(f->dir, "big"), bytes, size, 0755);
    assert_int_equal(chmod(file_in(f->dir, "big"), 0755), 0);
    free(bytes);
    hostbed_connect(f, 0);
    assert_int_equal(host_send_file(f->host, file_in(f->dir, "key"), "keys/actor.key", &err), RP_OK);
    assert_int_equal(host_send_file(f->host, file_in(f->dir, "empty"), "empty", &err), RP_OK);
    assert_int_equal(host_send_file(f->host, file_in(f->dir, "big"), "here/deep/big", &err), RP_OK);
    assert_int_equal(host_send_file(f->host, file_in(f->dir, "missing"), "x", &err), RP_NOT_FOUND);
    static const char *const bad[] = {"../x", "/x", "a/../../x", "", "a//b", ".x", "a/.."};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(host_send_file(f->host, file_in(f->dir, "key"), bad[i], &err), RP_INVALID_ARGUMENT);
    /* A process that is started later finds them. */
    const char *work = host_info(f->host)->facts.work;
    const char *script = textf("cmp '%s/big' '%s/here/deep/big' && cat '%s/keys/actor.key'", f->dir, work, work);
    hostbed_shell(f, &a, "a", script);
    assert_int_equal(hostbed_await_end(f, &a), 0);
    assert_string_equal(hostbed_log(f, "a"), "secret\n");
    assert_int_equal(stat(file_in(work, "keys/actor.key"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(stat(file_in(work, "here/deep/big"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0755);
    assert_int_equal(file_size(file_in(work, "empty")), 0);
    assert_false(file_exists(file_in(f->folder, "empty"))); /* what was sent there does not come back */
    host_close(f->host);
    assert_int_equal(host_send_file(f->host, file_in(f->dir, "key"), "x", &err), RP_UNAVAILABLE);
}

/* Files of a process are taken after it was started there. */
#define AFTER_START "while read -r x; do case \"$x\" in *start*) break;; esac; done; "

/* A node agent that means harm: nothing is written outside of the folder, and the launcher's files stay. */
CASE(hostile)
{
    struct process a;
    char names[] = "../outside /tmp/test-host-outside a/../../outside config.yaml keys/actor.key "
                   "launch.json status.json logs/x.log launch.lock trap/outside trapped .hidden keys "
                   "keys/../config.yaml ./config.yaml a//../config.yaml metrics.jsonl core.sbatch "
                   "page evaluator-0.jsonl best.weights report.txt return.svg plan.json report.html "
                   "checkpoint/1/manifest checkpoints journal-1/0 status.json.new tables/0 "
                   "x/\\u0000/y x\\u0000 a/b/c/d/e/f/g/h/i/j/k learner.weights snapshots/1.weights "
                   "actor-1.jsonl tb/actor-1/events profile/joint/b.jsonl ab.jsonl";
    mkdir(file_in(f->folder, "keys"), 0700);
    mkdir(file_in(f->dir, "other"), 0700);
    file_put(file_in(f->dir, "other/trapped"), "mine");
    assert_int_equal(symlink(file_in(f->dir, "other"), file_in(f->folder, "trap")), 0);
    assert_int_equal(symlink(file_in(f->dir, "other/trapped"), file_in(f->folder, "trapped")), 0);
    file_put(file_in(f->folder, "config.yaml"), "mine");
    file_put(file_in(f->folder, "keys/actor.key"), "mine");
    file_put(file_in(f->folder, "launch.json"), "mine");
    file_put(file_in(f->folder, "status.json"), "mine");
    file_put(file_in(f->folder, "a.good"), "mine");
    FILE *lines = fopen(file_in(f->dir, "lines"), "we");
    for (char *name = strtok(names, " "); name; name = strtok(NULL, " "))
        for (int way = 0; way < 4; way++)
            fprintf(lines,
                    "@rp "
                    "{\"type\":\"file\",\"name\":\"%s\",\"bytes\":4,\"offset\":%d,\"replace\":%s,\"last\":"
                    "true}\nharm",
                    name, way & 1 ? 4 : 0, way & 2 ? "true" : "false");
    static const char *const others[] = {
        "{\"type\":\"output\",\"id\":99,\"bytes\":4}\nharm",
        "{\"type\":\"output\",\"id\":1,\"bytes\":99999999}",
        "{\"type\":\"output\",\"id\":-1,\"bytes\":\"7\"}",
        "{\"type\":\"ended\",\"id\":77,\"status\":1}",
        "{\"type\":\"process\",\"id\":1e99,\"pid\":-5}",
        "{\"type\":\"process\",\"pid\":7,\"id\":1,\"cpu_ns\":[],\"memory\":-1}",
        "{\"type\":\"process\",\"id\":{},\"cpu_ns\":-1,\"memory\":1e999}",
        "{\"type\":\"load\",\"cpu\":NaN}",
        "{\"type\":\"ready\"}",
        "{\"type\":7}",
        "{}",
        "{\"type\":\"probed\",\"rate\":Infinity,\"ok\":true}",
        "{\"type\":\"file\",\"name\":\"a.sparse\",\"bytes\":0,\"offset\":9223372036854775807,\"replace\":false,"
        "\"last\":true}",
        "{\"type\":\"file\",\"name\":\"a.middle\",\"bytes\":4,\"offset\":5,\"replace\":true,\"last\":true}\nharm",
        "{\"type\":\"file\",\"name\":\"a.good\",\"bytes\":3,\"offset\":0,\"replace\":true,\"last\":true}\nnew"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        fprintf(lines, "@rp %s\n", others[i]);
    fclose(lines);
    hostbed_connect_script(f, textf("echo '@rp {\"type\":\"ready\",\"version\":\"%s\",\"cores\":NaN,\"work\":"
                                    "\"relative\"}'; " AFTER_START "cat '%s/lines'; exec cat >/dev/null",
                                    rp_version(), f->dir));
    hostbed_await(f, host_info(f->host)->state == HOST_READY);
    assert_true(host_info(f->host)->facts.cores > 0);
    assert_string_equal(host_info(f->host)->facts.work, "");
    hostbed_shell(f, &a, "a", "never starts");
    hostbed_await(f, strcmp(copy_of(f, "a.good"), "new") == 0);
    static const char *const kept[] = {"config.yaml", "keys/actor.key", "launch.json", "status.json"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        assert_string_equal(file_text(file_in(f->folder, kept[i])), "mine");
    assert_string_equal(file_text(file_in(f->dir, "other/trapped")), "mine");
    assert_false(file_exists(file_in(f->dir, "outside")));
    assert_false(file_exists(file_in(f->dir, "other/outside")));
    assert_false(file_exists("/tmp/test-host-outside"));
    char absent[] = "core.sbatch checkpoint checkpoints journal-1 status.json.new tables logs "
                    "launch.lock .hidden metrics.jsonl report.html evaluator-0.jsonl best.weights "
                    "report.txt return.svg a.sparse a.middle x learner.weights snapshots "
                    "actor-1.jsonl tb profile ab.jsonl";
    for (char *name = strtok(absent, " "); name; name = strtok(NULL, " "))
        assert_false(file_exists(file_in(f->folder, name)));
    assert_true(a.running);
}

/* Gives the folder a whole file, or what is appended to it from an offset on. */
static rp_status give(struct host_folder *folder, const char *name, int64_t offset, const char *bytes, rp_error *error)
{
    const struct host_line line = {
        .type = "file", .name = name, .offset = offset, .replace = offset == 0, .last = true};
    const struct host_message piece = {.line = &line, .bytes = (const uint8_t *)bytes, .size = strlen(bytes)};
    rp_status status = host_folder_take(folder, &piece, 0600, NULL, error);
    return status;
}

/* A host may write so much and no more; what it replaces counts once. */
CASE(bounds)
{
    struct host_folder folder;
    host_folder_init(&folder, f->folder, "test");
    folder.files_most = 8;
    folder.bytes_most = 100;
    for (int i = 0; i < 50; i++)
        assert_int_equal(give(&folder, "a", 0, "0123456789", &err), RP_OK);
    for (int i = 1; i < 10; i++)
        assert_int_equal(give(&folder, "a", i * 10, "0123456789", &err), RP_OK);
    assert_int_equal(give(&folder, "a", 100, "0", &err), RP_RESOURCE_EXHAUSTED);
    assert_int_equal(give(&folder, "b", 0, "0", &err), RP_RESOURCE_EXHAUSTED);
    assert_int_equal(file_size(file_in(f->folder, "a")), 100);
    int made = 0;
    for (int i = 0; i < 20; i++) { /* folders count, too */
        made += give(&folder, textf("d%d/x", i), 0, "", &err) == RP_OK;
    }
    assert_int_equal(err.status, RP_RESOURCE_EXHAUSTED);
    assert_in_range(made, 3, 4);
    assert_int_equal(give(&folder, "a", 0, "", &err), RP_OK); /* what is there may be replaced */
    host_folder_drop(&folder);
}
