/* One plain line about a run, for logs and pipes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/launch/view/frame.h"

#define HOSTS_NAMED 3u /* hosts that are not ready, in a line */

/* "12s", "2m05s", "3h20m". */
static const char *short_time(char *out, double seconds)
{
    double whole = seconds > 0 && seconds < 1e12 ? floor(seconds) : 0;
    uint64_t s = (uint64_t)whole;
    if (s < 60)
        snprintf(out, FORMAT_SIZE, "%us", (unsigned)s);
    else if (s < 3600)
        snprintf(out, FORMAT_SIZE, "%um%02us", (unsigned)(s / 60), (unsigned)(s % 60));
    else
        snprintf(out, FORMAT_SIZE, "%lluh%02um", (unsigned long long)(s / 3600), (unsigned)(s / 60 % 60));
    return out;
}

/* "5.2k": format_short without its blank. */
static const char *tight(char *out, double value)
{
    format_short(out, value);
    char *blank = strchr(out, ' ');
    if (blank)
        memmove(blank, blank + 1, strlen(blank));
    return out;
}

static void add_count(struct line *line, const char *what, uint64_t at, uint64_t to)
{
    format_buffer a, b;
    line_put(line, TINT_NONE, " %s %s", what, format_count(a, at));
    if (to)
        line_put(line, TINT_NONE, "/%s", format_count(b, to));
}

static void add_percent(struct line *line, const char *what, double share, const double by[IDLE_CAUSES])
{
    char causes[128];
    if (!isfinite(share))
        return;
    line_put(line, TINT_NONE, " %s %.0f%%", what, 100 * share);
    if (idle_words(by, causes, sizeof causes)[0])
        line_put(line, TINT_NONE, " (%s)", causes);
}

/* "hosts 2/4 (cpu3 lost for 12 s: Connection refused; cpu4 connecting)" */
static void add_hosts(struct line *line, const struct status *s)
{
    uint32_t ready = view_hosts_ready(s), named = 0;
    if (s->n_hosts < 2 || s->phase >= PHASE_DONE)
        return;
    line_put(line, TINT_NONE, " hosts %u/%u", ready, s->n_hosts);
    for (uint32_t i = 0; s->hosts && i < s->n_hosts && named < HOSTS_NAMED; i++)
        if (!s->hosts[i].ready)
            line_put(line, TINT_NONE, "%s%s %s", named++ ? "; " : " (", s->hosts[i].name, s->hosts[i].state);
    if (s->n_hosts - ready > named)
        line_put(line, TINT_NONE, "; %u more", s->n_hosts - ready - named);
    if (named)
        line_put(line, TINT_NONE, ")");
}

void view_line(struct text *out, const struct status *s)
{
    struct line line = {.utf8 = true};
    format_buffer a, b;
    line_put(&line, TINT_NONE, "%s %s", short_time(a, s->elapsed_s), phase_name(s->phase));
    add_count(&line, "steps", s->steps, s->stop_steps);
    if (s->stop_learner_steps)
        add_count(&line, "updates", s->learner_steps, s->stop_learner_steps);
    if (isfinite(s->progress))
        line_put(&line, TINT_NONE, " progress %.0f%%", 100 * s->progress);
    line_put(&line, TINT_NONE, " %s steps/s %s updates/s", tight(a, s->steps_rate), tight(b, s->updates_rate));
    if (isfinite(s->spi)) {
        line_put(&line, TINT_NONE, " spi %.3g", s->spi);
        if (s->spi_target > 0)
            line_put(&line, TINT_NONE, "/%.4g", s->spi_target);
    }
    if (isfinite(s->value))
        line_put(&line, TINT_NONE, " return %.4g (best %.4g)", s->value, s->best);
    add_percent(&line, "learners wait", s->learner_idle, s->idle_by.learner);
    add_percent(&line, "actors wait", s->actor_idle, s->idle_by.actor);
    if (status_is_limited(s) && s->cause[0] && s->phase < PHASE_DONE)
        line_put(&line, TINT_NONE, " limited by %s", s->cause);
    if (s->others > 0)
        line_put(&line, TINT_NONE, " other programs take %.1f cores", s->others);
    add_hosts(&line, s);
    if (s->restarts)
        line_put(&line, TINT_NONE, " restarts %u", s->restarts);
    if (s->reason[0] && s->phase != PHASE_FAILED)
        line_put(&line, TINT_NONE, " (%s)", s->reason);
    text_add(out, "%s", text_get(&line.text));
    line_fini(&line);
}
