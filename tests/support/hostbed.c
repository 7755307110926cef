#include "tests/support/hostbed.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

void hostbed_pause(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

void hostbed_tend(struct hostbed *f)
{
    host_tend(f->host, clock_ns());
    hostbed_pause(2);
}

/* ---- processes ---- */

int hostbed_processes(const struct hostbed *f, pid_t *one)
{
    DIR *proc = opendir("/proc");
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(proc));) {
        char path[300], *text = NULL;
        size_t capacity = 0;
        pid_t pid = (pid_t)atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%s/environ", entry->d_name);
        FILE *file = pid > 0 && pid != getpid() ? fopen(path, "re") : NULL;
        while (file && getdelim(&text, &capacity, '\0', file) > 0) {
            if (strcmp(text, f->mark) != 0)
                continue;
            count++;
            *one = pid;
            break;
        }
        free(text);
        if (file)
            fclose(file);
    }
    closedir(proc);
    return count;
}

void hostbed_await_nobody(struct hostbed *f)
{
    pid_t one = 0;
    hostbed_await(f, hostbed_processes(f, &one) == 0);
}

void hostbed_start(struct hostbed *f, struct process *process, const char *name, const char *const *argv)
{
    const struct process_options options = {.name = name,
                                            .argv = argv,
                                            .log = textf("%s/%s.log", f->dir, name),
                                            .guard = &f->guard,
                                            .place = host_place(f->host)};
    ok(process_start(process, &options, clock_ns(), &err));
}

void hostbed_shell(struct hostbed *f, struct process *process, const char *name, const char *script)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    hostbed_start(f, process, name, argv);
}

int hostbed_await_end(struct hostbed *f, struct process *process)
{
    int status = -1;
    hostbed_await(f, process_ended(process, &status));
    return status;
}

const char *hostbed_log(const struct hostbed *f, const char *name)
{
    return file_text(textf("%s/%s.log", f->dir, name));
}

/* ---- fixture ---- */

void hostbed_set_up(struct hostbed *f)
{
    signal(SIGPIPE, SIG_IGN); /* as the launcher: a carrier may end while it is written to */
    snprintf(f->dir, sizeof f->dir, "/tmp/test-host-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->folder, sizeof f->folder, "%s/run", f->dir);
    mkdir(f->folder, 0777);
    snprintf(f->mark, sizeof f->mark, HOSTBED_MARK "=%s", f->dir);
    setenv(HOSTBED_MARK, f->dir, 1);
    setenv("TMPDIR", f->dir, 1);
    unsetenv("XDG_RUNTIME_DIR");
    setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22", 1); /* of the user's own login */
    assert_int_equal(guard_start(&f->guard, NULL, &err), RP_OK);
}

const char *hostbed_work(const struct hostbed *f)
{
    uint32_t n;
    char **folders = files_like(file_in(f->dir, "replay-node-*"), &n);
    return n > 0 ? textf("%s", folders[n - 1]) : "";
}

void hostbed_tear_down(struct hostbed *f)
{
    host_destroy(&f->host);
    guard_stop(&f->guard);
    hostbed_await_nobody(f);
    assert_int_equal(system(textf("rm -rf '%s'", f->dir)), 0);
}

void hostbed_make(struct hostbed *f, const char *const *carrier, int64_t lease_ns)
{
    const struct host_options options = {.name = "cpu3",
                                         .carrier = carrier,
                                         .folder = f->folder,
                                         .here = f->dir,
                                         .guard = &f->guard,
                                         .lease_ns = lease_ns};
    f->host = host_new(&options);
    assert_int_equal(host_info(f->host)->state, HOST_ABSENT);
    host_open(f->host, clock_ns());
}

/* A carrier that writes its number, which is the node agent's, into a file. */
void hostbed_connect(struct hostbed *f, int64_t lease_ns)
{
    const char *const carrier[] = {"/bin/sh", "-c",
                                   "SSH_CONNECTION='10.1.2.3 4567 10.1.2.4 22'; export SSH_CONNECTION; "
                                   "echo $$ > \"$" HOSTBED_MARK "/pid\"; exec \"$RP_LAUNCH\" node",
                                   NULL};
    hostbed_make(f, carrier, lease_ns);
    hostbed_await(f, host_info(f->host)->state == HOST_READY);
}

void hostbed_connect_script(struct hostbed *f, const char *script)
{
    const char *const carrier[] = {"/bin/sh", "-c", script, NULL};
    hostbed_make(f, carrier, 0);
}

pid_t hostbed_node(const struct hostbed *f)
{
    return (pid_t)atoi(file_text(file_in(f->dir, "pid")));
}
