#include "agent/launch/supervisor.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "agent/launch/process/process.h"
#include "proto/base/clock.h"
#include "proto/base/format.h"

/* Differs from every status of waitpid. */
#define NOT_STARTED (-1)

static int64_t pause_ns(const struct supervisor_limits *limits, uint32_t failures)
{
    int64_t pause = limits->backoff_ns;
    for (uint32_t i = 1; i < failures && pause < limits->backoff_most_ns; i++)
        pause = pause > limits->backoff_most_ns / 2 ? limits->backoff_most_ns : 2 * pause;
    return pause < limits->backoff_most_ns ? pause : limits->backoff_most_ns;
}

static enum supervisor_action failed(struct supervised *self, const struct supervisor_limits *limits,
                                     const struct supervisor_end *end)
{
    bool healthy = end->ran_ns >= limits->healthy_ns;
    bool same = self->in_a_row > 0 && self->first.status == end->status;
    self->unhealthy = healthy ? 1 : self->unhealthy + 1;
    self->in_a_row = healthy || !same ? 1 : self->in_a_row + 1;
    if (self->in_a_row == 1) {
        self->first = (struct failure){.status = end->status, .ran_ns = end->ran_ns};
        snprintf(self->first.tail, sizeof self->first.tail, "%s", end->tail ? end->tail : "");
    }
    self->restart_ns = 0;
    if (self->in_a_row >= limits->failures)
        return SUPERVISOR_GIVE_UP;
    self->restart_ns = end->now_ns + pause_ns(limits, self->unhealthy);
    if (self->restart_ns == 0)
        self->restart_ns = 1;
    return SUPERVISOR_RESTART;
}

enum supervisor_action supervisor_ended(struct supervised *self, const struct supervisor_limits *limits,
                                        const struct supervisor_end *end)
{
    if (!end->expected)
        return failed(self, limits, end);
    self->restart_ns = 0;
    return SUPERVISOR_DONE;
}

enum supervisor_action supervisor_not_started(struct supervised *self, const struct supervisor_limits *limits,
                                              const char *why, int64_t now_ns)
{
    return failed(self, limits, &(struct supervisor_end){.status = NOT_STARTED, .tail = why, .now_ns = now_ns});
}

bool supervisor_due(struct supervised *self, int64_t now_ns)
{
    if (self->restart_ns == 0 || now_ns < self->restart_ns)
        return false;
    self->restart_ns = 0;
    self->restarts++;
    return true;
}

const char *supervisor_explain(const struct supervised *self, const char *name, char *out, size_t size)
{
    const struct failure *first = &self->first;
    char how[96], times[64] = "";
    bool row = self->in_a_row > 1;
    struct text text = {0};
    if (row)
        snprintf(times, sizeof times, " %u times in a row", self->in_a_row);
    process_describe(first->status, how, sizeof how);
    if (first->status == NOT_STARTED)
        text_add(&text, "%.64s could not be started%s", name, times);
    else
        text_add(&text, "%.64s %s%s%s%s%s %.1f s", name, first->status == 0 ? "ended by itself" : "failed", times,
                 WIFEXITED(first->status) ? " with " : ", ", how, row ? "; the first time after" : " after",
                 (double)first->ran_ns / (double)NS_PER_S);
    text_add(&text, "%s", first->tail[0] ? ":" : "; it printed nothing");
    for (const char *at = first->tail; *at;) {
        size_t length = strcspn(at, "\n");
        text_add(&text, "\n  | %.*s", (int)length, at);
        at += length + (at[length] == '\n');
    }
    snprintf(out, size, "%s", text_get(&text));
    text_fini(&text);
    return out;
}

const char *supervisor_one_line(const char *text, char *out, size_t size)
{
    size_t end = strlen(text), first = strcspn(text, "\n");
    while (end > 0 && strchr(" \t\r\n", text[end - 1]))
        end--;
    size_t last = end;
    while (last > first && text[last - 1] != '\n')
        last--;
    if (first >= end) {
        snprintf(out, size, "%.*s", (int)end, text);
    } else {
        last += strspn(text + last, " |");
        snprintf(out, size, "%.*s %.*s", (int)first, text, (int)(end - last), text + last);
    }
    return out;
}

bool hang_seen(struct hang *self, int64_t hang_ns, int64_t cpu_ns, int64_t now_ns)
{
    bool paused = now_ns - self->looked_ns > hang_ns / 2;
    self->looked_ns = now_ns;
    if (self->since_ns == 0 || cpu_ns != self->cpu_ns || paused) {
        self->cpu_ns = cpu_ns;
        self->since_ns = now_ns;
        return false;
    }
    if (hang_ns <= 0 || now_ns - self->since_ns < hang_ns)
        return false;
    self->since_ns = now_ns; /* the caller acts now, and gets true again if that changes nothing */
    return true;
}
