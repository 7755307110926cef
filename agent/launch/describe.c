#include "agent/launch/describe.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/launch/process/command.h"
#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define LOOK_MS 5
#define MOST_BYTES (64u << 10) /* that are read of each stream */
#define MOST_KEYS 16u

/* The streams of the child: files in memory. */
struct answer {
    int out, err;
    char text[MOST_BYTES], problems[MOST_BYTES];
};

static void read_back(int fd, char text[MOST_BYTES])
{
    ssize_t n = pread(fd, text, MOST_BYTES - 1, 0);
    text[n > 0 ? n : 0] = '\0';
}

/* Waits for the child; kills it and its group at the end of the time. Returns false then. */
static bool await_child(pid_t pid, int64_t timeout_ns, int *status)
{
    struct clock clock = clock_system();
    int64_t end_ns = clock_now(&clock) + timeout_ns;
    while (waitpid(pid, status, WNOHANG) == 0) {
        if (clock_now(&clock) >= end_ns) {
            kill(-pid, SIGKILL);
            *status = spawn_reap(pid);
            return false;
        }
        poll(NULL, 0, LOOK_MS);
    }
    return true;
}

static rp_status run_child(const struct run_config *config, const char *programs, const char *here,
                           struct answer *answer, rp_error *err)
{
    const struct env_config *env = &config->environment;
    char **argv = command_describe(env), *path = command_python_path(programs, here);
    const char *const environment[] = {path, "OPENBLAS_NUM_THREADS=1", NULL};
    const struct spawn spawn = {.argv = (const char *const *)argv,
                                .environment = environment,
                                .in = SPAWN_NULL,
                                .out = answer->out,
                                .err = answer->err,
                                .dies_with_us = true};
    int error = 0, status = 0;
    pid_t pid = argv && path ? spawn_start(&spawn, &error) : -1;
    bool in_time = pid > 0 && await_child(pid, env->timeout_ns, &status);
    command_free(&argv);
    free(path);
    read_back(answer->out, answer->text);
    read_back(answer->err, answer->problems);
    if (pid < 0)
        return err_set(err, RP_NOT_FOUND, "'%s' cannot be started: %s (environment.interpreter)", env->interpreter,
                       strerror(error ? error : ENOMEM));
    if (!in_time)
        return err_set(err, RP_DEADLINE_EXCEEDED,
                       "'%s' did not describe itself within %g s: its constructor, reset() or step() hangs, or needs a "
                       "longer environment.timeout",
                       env_name(env), (double)env->timeout_ns * 1e-9);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return RP_OK;
    return RP_FAILED_PRECONDITION;
}

/* The last line that the child printed is the sentence; the traceback stands before it. */
static rp_status tell_failure(const struct env_config *env, struct answer *answer, rp_error *err)
{
    char *text = answer->problems;
    size_t length = strlen(text);
    while (length > 0 && strchr("\n ", text[length - 1]))
        text[--length] = '\0';
    if (strstr(text, "No module named") && (strstr(text, "replaybus") || strstr(text, "numpy"))) {
        const char *missing = strstr(text, "replaybus") ? "replaybus" : "numpy";
        return err_set(
            err, RP_FAILED_PRECONDITION,
            "'%s' has no package %s, which actors in Python need: install it (pip install ./agent/python, or "
            "the wheel that ./dev python makes), or name another Python in environment.interpreter",
            env->interpreter, missing);
    }
    char *last = strrchr(text, '\n');
    if (last) {
        *last = '\0';
        fprintf(stderr, "%s\n", text);
    }
    last = last ? last + 1 : text;
    return err_set(err, RP_FAILED_PRECONDITION, "%s",
                   *last ? last : "the environment could not be described, and Python printed nothing");
}

/* Turns each line "key: value" into an override. */
static char **make_overrides(char *text, rp_error *err)
{
    char **list = calloc(MOST_KEYS + 1, sizeof *list), *rest = NULL;
    uint32_t n = 0;
    for (char *line = strtok_r(text, "\n", &rest); list && line && n < MOST_KEYS; line = strtok_r(NULL, "\n", &rest)) {
        char *colon = strstr(line, ": ");
        if (!colon)
            continue;
        if (asprintf(&list[n], "environment.spec.%.*s=%s", (int)(colon - line), line, colon + 2) < 0)
            list[n] = NULL;
        n += list[n] != NULL;
    }
    if (!list)
        err_set(err, RP_NO_MEMORY, "no memory for the description of an environment");
    return list;
}

char **describe_environment(const struct run_config *config, const char *programs, const char *here, rp_error *err)
{
    struct answer *answer = calloc(1, sizeof *answer);
    char **list = NULL;
    rp_status status = RP_NO_MEMORY;
    if (answer) {
        answer->out = memfd_create("description", MFD_CLOEXEC);
        answer->err = memfd_create("problems", MFD_CLOEXEC);
        status = run_child(config, programs, here, answer, err);
        if (status == RP_FAILED_PRECONDITION)
            tell_failure(&config->environment, answer, err);
        else if (answer->problems[0])
            fputs(answer->problems, stderr);
        close(answer->out);
        close(answer->err);
    }
    if (status == RP_OK)
        list = make_overrides(answer->text, err);
    free(answer);
    return list;
}
