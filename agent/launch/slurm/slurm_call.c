#include "agent/launch/slurm/slurm_call.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define LIMIT_NS (30 * NS_PER_S)
#define NAP_NS (5 * NS_PER_MS)
/* Longer answers are cut: an array has at most some thousand tasks. */
#define MOST_TEXT (1u << 20)

extern char **environ;

static int64_t now(void)
{
    struct clock clock = clock_system();
    return clock_now(&clock);
}

/* ---- the environment ---- */

void slurm_free(char ***list)
{
    for (char **word = *list; word && *word; word++)
        free(*word);
    free(*list);
    *list = NULL;
}

/* Length of the name if the variable is one of the job that this process is in; 0: it is not. Those begin with SLURM; SLURM_CONF
 * says where the cluster is. Outside of jobs, such variables are the user's own. */
static size_t job_variable(const char *entry)
{
    size_t length = strcspn(entry, "=");
    bool names_cluster = length == 10 && strncmp(entry, "SLURM_CONF", 10) == 0;
    return getenv("SLURM_JOB_ID") && strncmp(entry, "SLURM", 5) == 0 && !names_cluster ? length : 0;
}

static bool add_word(char **list, size_t *n, const char *word, size_t length)
{
    list[*n] = strndup(word, length);
    return list[(*n)++] != NULL;
}

char **slurm_without_job(const char *const *argv)
{
    size_t most = 2, n = 0;
    for (char **entry = environ; entry && *entry; entry++)
        most += 2;
    for (const char *const *word = argv; *word; word++)
        most++;
    char **list = calloc(most, sizeof *list);
    bool ok = list && add_word(list, &n, "env", 3);
    for (char **entry = environ; ok && entry && *entry; entry++) {
        size_t length = job_variable(*entry);
        if (length > 0)
            ok = add_word(list, &n, "-u", 2) && add_word(list, &n, *entry, length);
    }
    for (const char *const *word = argv; ok && *word; word++)
        ok = add_word(list, &n, *word, strlen(*word));
    if (!ok)
        slurm_free(&list);
    return list;
}

/* ---- one call ---- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static pid_t start(struct slurm_call *self, char **argv, int *error)
{
    int out[2] = {-1, -1}, errors[2] = {-1, -1};
    pid_t pid = -1;
    if (pipe2(out, O_CLOEXEC) == 0 && pipe2(errors, O_CLOEXEC) == 0) {
        struct spawn spawn = {
            .argv = (const char *const *)argv, .in = SPAWN_NULL, .out = out[1], .err = errors[1], .dies_with_us = true};
        pid = spawn_start(&spawn, error);
    } else {
        *error = errno;
    }
    close_fd(&out[1]);
    close_fd(&errors[1]);
    self->out = out[0];
    self->err = errors[0];
    return pid;
}

rp_status slurm_call_start(struct slurm_call *self, const char *const *argv, int64_t limit_ns, rp_error *err)
{
    int error = 0;
    *self = (struct slurm_call){.out = -1, .err = -1, .limit_ns = limit_ns, .deadline_ns = now() + limit_ns};
    if (!spawn_can_start(argv[0]))
        return err_set(err, RP_NOT_FOUND, "there is no program '%s' here: is this a machine of a Slurm cluster?",
                       argv[0]);
    char **words = slurm_without_job(argv);
    if (!words)
        return err_set(err, RP_NO_MEMORY, "no memory to start %s", argv[0]);
    pid_t pid = start(self, words, &error);
    slurm_free(&words);
    if (pid < 0) {
        slurm_call_fini(self);
        return err_set(err, RP_IO, "could not start %s: %s", argv[0], strerror(error));
    }
    self->pid = pid;
    fcntl(self->out, F_SETFL, O_NONBLOCK);
    fcntl(self->err, F_SETFL, O_NONBLOCK);
    return RP_OK;
}

static bool keep_text(struct slurm_call *self, const char *block, size_t n)
{
    if (self->size + n > MOST_TEXT)
        return true;
    char *text = realloc(self->text, self->size + n + 1);
    if (!text)
        return false;
    memcpy(text + self->size, block, n);
    self->text = text;
    self->size += n;
    text[self->size] = '\0';
    return true;
}

static void keep_problem(struct slurm_call *self, const char *block, size_t n)
{
    size_t room = sizeof self->problem - 1 - self->problem_size;
    n = n < room ? n : room;
    memcpy(self->problem + self->problem_size, block, n);
    self->problem_size += n;
    self->problem[self->problem_size] = '\0';
}

static void read_all(struct slurm_call *self)
{
    char block[4096];
    ssize_t n;
    while (self->out >= 0 && (n = read(self->out, block, sizeof block)) > 0)
        if (!keep_text(self, block, (size_t)n))
            break;
    while (self->err >= 0 && (n = read(self->err, block, sizeof block)) > 0)
        keep_problem(self, block, (size_t)n);
}

/* The first line that the program printed as its problem, without "sbatch: error: ". */
static const char *first_problem(struct slurm_call *self)
{
    char *line = self->problem;
    line[strcspn(line, "\n")] = '\0';
    const char *mark = strstr(line, "error: ");
    return mark ? mark + 7 : line;
}

static rp_status judge(struct slurm_call *self, int code, bool late, rp_error *err)
{
    if (late)
        return err_set(err, RP_DEADLINE_EXCEEDED, "Slurm does not answer: a command was ended after %.3g s",
                       1e-9 * (double)self->limit_ns);
    if (WIFEXITED(code) && WEXITSTATUS(code) == 0)
        return RP_OK;
    const char *problem = first_problem(self);
    return err_set(err, RP_FAILED_PRECONDITION, "Slurm: %s", problem[0] ? problem : "a command failed without a word");
}

bool slurm_call_ended(struct slurm_call *self, rp_status *status, rp_error *err)
{
    int code = 0;
    if (self->pid <= 0)
        return false;
    read_all(self);
    bool late = now() > self->deadline_ns;
    if (late)
        kill(-self->pid, SIGKILL);
    pid_t ended = waitpid(self->pid, &code, late ? 0 : WNOHANG);
    if (ended == 0)
        return false;
    read_all(self);
    self->pid = 0;
    close_fd(&self->out);
    close_fd(&self->err);
    *status = ended < 0 ? err_set(err, RP_INTERNAL, "a command of Slurm is gone: %s", strerror(errno))
                        : judge(self, code, late, err);
    return true;
}

void slurm_call_fini(struct slurm_call *self)
{
    if (self->pid > 0) {
        kill(-self->pid, SIGKILL);
        waitpid(self->pid, NULL, 0);
    }
    if (self->pid > 0 || self->deadline_ns > 0) {
        close_fd(&self->out);
        close_fd(&self->err);
    }
    free(self->text);
    *self = (struct slurm_call){.out = -1, .err = -1};
}

/* ---- a call with a wait ---- */

rp_status slurm_run(const char *const *argv, int64_t limit_ns, char **out, rp_error *err)
{
    struct slurm_call call;
    rp_status status = slurm_call_start(&call, argv, limit_ns > 0 ? limit_ns : LIMIT_NS, err);
    if (status != RP_OK)
        return status;
    while (!slurm_call_ended(&call, &status, err))
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    if (status == RP_OK && out) {
        *out = call.text ? call.text : strdup("");
        call.text = NULL;
        if (!*out)
            status = err_set(err, RP_NO_MEMORY, "no memory for an answer of Slurm");
    }
    slurm_call_fini(&call);
    return status;
}
