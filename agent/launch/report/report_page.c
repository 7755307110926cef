/* The page of a report: one file that needs no other file. */
#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/observe/run_folder.h"
#include "agent/launch/report/report_impl.h"

static const char head[] = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                           "<meta name=\"color-scheme\" content=\"light dark\">\n";

static const char css[] =
    "<style>\n"
    ":root{--ground:#f5f6f8;--card:#fff;--ink:#1f2733;--soft:#5b6675;--rule:#e4e7ec;--good:#12805c;--good-ground:#"
    "dcf5ea;"
    "--warn:#9a5b00;--warn-ground:#fdf0d8;--bad:#b3261e;--bad-ground:#fde3e1;--link:#1f66c7}\n"
    "@media (prefers-color-scheme:dark){:root{--ground:#0d1117;--card:#161b22;--ink:#e6ebf2;--soft:#9aa5b4;"
    "--rule:#2a313c;--good:#5fd3a3;--good-ground:#12352a;--warn:#f0b95b;--warn-ground:#3a2c10;--bad:#ff8a80;"
    "--bad-ground:#43191a;--link:#79b0ff}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,"
    "'Helvetica Neue',sans-serif;-webkit-font-smoothing:antialiased}\n"
    "main{max-width:1120px;margin:0 auto;padding:40px 24px 64px}\n"
    "h1{font-size:30px;line-height:1.2;letter-spacing:-.02em;margin:0;font-weight:650;overflow-wrap:anywhere}\n"
    "h2{font-size:17px;margin:44px 0 14px;font-weight:620;letter-spacing:-.005em}\n"
    "p{margin:8px 0;color:var(--soft)}a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}\n"
    "header{display:flex;align-items:center;gap:14px;flex-wrap:wrap}\n"
    ".pill{font-size:13px;font-weight:600;padding:3px 12px;border-radius:99px}\n"
    ".done{color:var(--good);background:var(--good-ground)}.stopped{color:var(--warn);background:var(--warn-ground)}\n"
    ".failed{color:var(--bad);background:var(--bad-ground)}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:14px;margin-top:26px}\n"
    ".tile,.card{background:var(--card);border:1px solid var(--rule);border-radius:12px}\n"
    ".tile{padding:14px 18px}.tile b{display:block;font-size:25px;line-height:1.25;font-weight:620;"
    "letter-spacing:-.02em;font-variant-numeric:tabular-nums}\n"
    ".tile span{font-size:13px;color:var(--soft)}.tile small{display:block;font-size:12px;color:var(--soft)}\n"
    ".card{overflow-x:auto}.charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px}\n"
    ".charts .wide{grid-column:1/-1}.charts .card{overflow:hidden}.charts svg{display:block;width:100%;height:auto}\n"
    "@media (max-width:760px){.charts{grid-template-columns:minmax(0,1fr)}.charts .wide{overflow-x:auto}.charts .wide "
    "svg{min-width:720px}main{padding:24px 14px 48px}}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:left;padding:9px 18px;border-top:1px solid var(--rule);vertical-align:top}\n"
    "th{font-size:12.5px;font-weight:550;color:var(--soft);border-top:0;white-space:nowrap}\n"
    ".n{text-align:right;white-space:nowrap}.soft{color:var(--soft)}.off{color:var(--warn);font-weight:600}\n"
    "tr.chosen td:not(.soft){font-weight:600}td.soft{min-width:180px}code{font:13px/1.5 ui-monospace,'SF "
    "Mono',Menlo,Consolas,monospace}\n"
    "pre{margin:0;padding:14px 18px;overflow-x:auto}footer{margin-top:44px;color:var(--soft)}footer "
    "a{margin-right:18px}\n"
    "</style>\n";

static void add_cell(struct text *out, const char *class, const char *text)
{
    text_add(out, "<td%s%s%s>", class[0] ? " class=\"" : "", class, class[0] ? "\"" : "");
    plot_escape(out, text);
    text_add(out, "</td>");
}

/* ---- the top ---- */

static void add_tile(struct text *out, const char *name, const char *value, const char *more)
{
    text_add(out, "<div class=\"tile\"><span>%s</span><b>", name);
    plot_escape(out, value);
    text_add(out, "</b>");
    if (more[0]) {
        text_add(out, "<small>");
        plot_escape(out, more);
        text_add(out, "</small>");
    }
    text_add(out, "</div>\n");
}

static void add_return_tile(struct text *out, const struct report *self, const struct report_data *data)
{
    format_buffer value, best;
    char more[256] = "";
    bool final = isfinite(self->final_value);
    size_t used = 0;
    if (final)
        used = (size_t)snprintf(more, sizeof more, "%s, mean of %u episode%s",
                                self->final_weights ? self->final_weights : "last parameters", self->final_episodes,
                                self->final_episodes == 1 ? "" : "s");
    double other = self->best ? self->best->value : self->last->best;
    if (isfinite(other) && !(final && self->final_value >= other))
        snprintf(more + used, sizeof more - used, "%s%s %s", used ? "; " : "", self->best ? BEST_WEIGHTS_FILE : "best",
                 report_value(other, best));
    double shown = final ? self->final_value : self->last->value;
    if (!isfinite(shown)) { /* the run has no evaluations */
        shown = series_last(&data->run, COLUMN_ACTOR_VALUE);
        snprintf(more, sizeof more, "%s", isfinite(shown) ? "of the actors, who explore" : "");
    }
    add_tile(out, final ? "final return" : "last return", report_value(shown, value), more);
}

static void add_top(struct text *out, const struct report *self, const struct report_data *data)
{
    const struct status *last = self->last;
    format_buffer a, b;
    char more[128];
    time_t when = last->unix_s > 0 && last->unix_s < 1e11 ? (time_t)last->unix_s : 0;
    struct tm tm;
    char date[64] = "";
    if (when && gmtime_r(&when, &tm))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &tm);
    text_add(out, "<header><h1>");
    plot_escape(out, last->name);
    text_add(out, "</h1><span class=\"pill %s\">%s</span><span class=\"soft\">%s</span></header>\n<p>",
             phase_name(self->last->phase), phase_name(self->last->phase), date);
    plot_escape(out, last->reason);
    text_add(out, "</p>\n<div class=\"tiles\">\n");
    add_return_tile(out, self, data);
    more[0] = '\0';
    if (self->legs > 1)
        snprintf(more, sizeof more, "in %u legs", self->legs);
    add_tile(out, "wall time", format_seconds(a, last->elapsed_s), more);
    snprintf(more, sizeof more, "%s in the mean",
             format_rate(b, last->elapsed_s > 0 ? (double)last->steps / last->elapsed_s : 0));
    add_tile(out, "environment steps", format_count(a, last->steps), more);
    snprintf(more, sizeof more, "%s in the mean",
             format_rate(b, last->elapsed_s > 0 ? (double)last->learner_steps / last->elapsed_s : 0));
    add_tile(out, "learner steps", format_count(a, last->learner_steps), more);
    snprintf(more, sizeof more, "%u restart%s", last->restarts, last->restarts == 1 ? "" : "s");
    snprintf(a, sizeof a, "%u + %u", last->actors_wanted, last->learners_wanted);
    add_tile(out, "actors + learners", a, more);
    snprintf(more, sizeof more, "%.1f cores at most", data->peak_cpu);
    add_tile(out, "peak memory", format_bytes(a, data->peak_memory < 1e18 ? (uint64_t)data->peak_memory : 0), more);
    text_add(out, "</div>\n");
}

/* ---- tables ---- */

static void add_rows(struct text *out, const struct report *self, const struct report_stretch *stretch)
{
    struct report_row rows[REPORT_ROWS];
    format_buffer cell;
    report_rows(self, stretch, rows);
    text_add(out, "<div class=\"card\"><table><tr><th></th><th class=\"n\">predicted</th><th class=\"n\">achieved</th>"
                  "<th class=\"n\">difference</th></tr>\n");
    for (uint32_t i = 0; i < REPORT_ROWS; i++) {
        bool far_off;
        text_add(out, "<tr>");
        add_cell(out, "", rows[i].name);
        add_cell(out, "n", report_cell(&rows[i], rows[i].predicted, cell));
        add_cell(out, "n", report_cell(&rows[i], rows[i].achieved, cell));
        report_difference(&rows[i], cell, &far_off);
        add_cell(out, far_off ? "n off" : "n", cell);
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table></div>\n");
}

/* "Learners waited for sample 3%, reduce 2% of the time." */
static void add_waits(struct text *out, const char *who, const double by[IDLE_CAUSES])
{
    char causes[128];
    if (idle_words(by, causes, sizeof causes)[0])
        text_add(out, "<p>%s waited for %s of the time.</p>\n", who, causes);
}

static void add_outcome(struct text *out, const struct report *self)
{
    char text[160];
    text_add(out, "<h2>Predicted against achieved</h2>\n");
    if (!self->plan)
        text_add(out, "<p>There was no plan.</p>\n");
    if (self->n_stretches == 0) {
        text_add(out, "<p>Nothing was inserted or sampled.</p>\n");
        add_rows(out, self, NULL);
    }
    for (uint32_t i = 0; i < self->n_stretches; i++) {
        text_add(out, "<p>");
        plot_escape(out, report_stretch_text(&self->stretches[i], text, sizeof text));
        text_add(out, "</p>\n");
        add_rows(out, self, &self->stretches[i]);
        add_waits(out, "Actors", self->stretches[i].rates.idle_by.actor);
        add_waits(out, "Learners", self->stretches[i].rates.idle_by.learner);
    }
}

static void add_choice(struct text *out, const struct plan_choice *choice, bool chosen)
{
    format_buffer cell;
    const struct report_row share = {.share = true}, plain = {0};
    text_add(out, "<tr%s><td class=\"n\">%u</td><td class=\"n\">%u</td>", chosen ? " class=\"chosen\"" : "",
             choice->actors, choice->learners);
    add_cell(out, "n", report_cell(&plain, choice->inserts, cell));
    add_cell(out, "n", report_cell(&plain, choice->samples, cell));
    add_cell(out, "n", report_cell(&share, choice->actor_idle, cell));
    add_cell(out, "n", report_cell(&share, choice->learner_idle, cell));
    add_cell(out, "", plan_bottleneck_names[choice->bottleneck]);
    add_cell(out, "soft", choice->reason);
    text_add(out, "</tr>\n");
}

static void add_plan(struct text *out, const struct plan *plan)
{
    if (!plan)
        return;
    text_add(out, "<h2>The plan and its alternatives</h2>\n<div class=\"card\"><table><tr><th class=\"n\">actors</th>"
                  "<th class=\"n\">learners</th><th class=\"n\">inserts/s</th><th class=\"n\">samples/s</th>"
                  "<th class=\"n\">actors idle</th><th class=\"n\">learners idle</th>"
                  "<th>bottleneck</th><th>why</th></tr>\n");
    add_choice(out, &plan->chosen, true);
    for (uint32_t i = 0; i < plan->n_others && i < PLAN_MAX_OTHERS; i++)
        add_choice(out, &plan->others[i], false);
    text_add(out, "</table></div>\n");
}

/* "The broker had 4 shards: ...". A broker alone is named where a plan says why. */
static void add_shards(struct text *out, const struct status *last)
{
    if (last->shards < 2 && !last->shards_reason[0])
        return;
    text_add(out, "<p>The broker had %u shard%s%s", last->shards, last->shards == 1 ? "" : "s",
             last->shards_reason[0] ? ": " : "");
    plot_escape(out, last->shards_reason);
    text_add(out, ".</p>\n");
}

static void add_link(struct text *out, const char *folder, const char *file, const char *ending, const char *text)
{
    text_add(out, "<a href=\"%s", folder);
    for (const char *s = file; *s; s++) { /* a name may contain anything */
        bool plain = (*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '-' ||
                     *s == '_' || *s == '.';
        text_add(out, plain ? "%c" : "%%%02X", (unsigned char)*s);
    }
    text_add(out, "%s\">", ending);
    plot_escape(out, text);
    text_add(out, "</a>");
}

static void add_hosts(struct text *out, const struct status *last)
{
    uint32_t n = report_hosts(last);
    if (n == 0)
        return;
    text_add(out, "<h2>Hosts</h2>\n<div class=\"card\"><table><tr><th>name</th><th class=\"n\">actors</th>"
                  "<th class=\"n\">learners</th><th class=\"n\">cores used</th><th>lost</th><th>processor</th></tr>\n");
    for (uint32_t i = 0; i < n; i++) {
        struct report_host host;
        report_host(last, i, &host);
        text_add(out, "<tr>");
        add_cell(out, "", host.name);
        add_cell(out, "n", host.actors);
        add_cell(out, "n", host.learners);
        add_cell(out, "n", host.cores);
        add_cell(out, host.was_lost ? "off" : "soft", host.lost);
        add_cell(out, "soft", host.model);
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table></div>\n");
}

static void add_processes(struct text *out, const struct status *last)
{
    if (!last->n_processes || !last->processes)
        return;
    bool hosts = report_hosts(last) > 0;
    text_add(out,
             "<h2>Processes</h2>\n<div class=\"card\"><table><tr><th>name</th>%s<th>state</th>"
             "<th class=\"n\">restarts</th><th class=\"n\">memory</th><th>output</th></tr>\n",
             hosts ? "<th>host</th>" : "");
    for (uint32_t i = 0; i < last->n_processes; i++) {
        const struct status_process *p = &last->processes[i];
        format_buffer cell;
        text_add(out, "<tr>");
        add_cell(out, "", p->name);
        if (hosts)
            add_cell(out, "", p->host);
        add_cell(out, "soft", p->state);
        snprintf(cell, sizeof cell, "%u", p->restarts);
        add_cell(out, p->restarts ? "n off" : "n", cell);
        add_cell(out, "n", p->memory ? format_bytes(cell, p->memory) : "-");
        text_add(out, "<td>");
        add_link(out, "logs/", p->name, ".log", "log");
        text_add(out, "</td></tr>\n");
    }
    text_add(out, "</table></div>\n");
}

static void add_events(struct text *out, const struct report_data *data)
{
    if (!data->n_events)
        return;
    text_add(out, "<h2>Events</h2>\n");
    if (data->lost_events)
        text_add(out, "<p>%u earlier ones are in logs/launch.log.</p>\n", data->lost_events);
    text_add(out, "<div class=\"card\"><table><tr><th class=\"n\">after</th><th>what</th></tr>\n");
    for (uint32_t i = 0; i < data->n_events; i++) {
        format_buffer time;
        text_add(out, "<tr>");
        add_cell(out, "n soft", format_seconds(time, data->events[i].elapsed_s));
        add_cell(out, "", data->events[i].text);
        text_add(out, "</tr>\n");
    }
    text_add(out, "</table></div>\n");
}

/* ---- charts and the end ---- */

static void add_charts(struct text *out, const struct report *self, const struct report_data *data)
{
    text_add(out, "<h2>The run</h2>\n<div class=\"charts\">\n");
    for (uint32_t i = 0; i < REPORT_PLOTS; i++) {
        bool wide = i == PLOT_RETURN || i == PLOT_MEMORY;
        text_add(out, "<div class=\"card%s\">", wide ? " wide" : "");
        report_plot(out, self, data, (enum report_plot)i, wide ? 1070 : 528,
                    i == PLOT_RETURN   ? 340
                    : i == PLOT_MEMORY ? 220
                                       : 270);
        text_add(out, "</div>\n");
    }
    text_add(out, "</div>\n");
}

/* Links to the files that exist. */
static void add_footer(struct text *out, const char *folder)
{
    static const char *const files[] = {"config.yaml",     "report.json",     "plan.json",
                                        "profile.svg",     "metrics.jsonl",   "best.weights",
                                        "learner.weights", "logs/launch.log", "logs"};
    text_add(out, "<footer>");
    for (uint32_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[FOLDER_SIZE + 32];
        if (access(run_folder_path(path, sizeof path, folder, files[i]), R_OK) == 0)
            text_add(out, "<a href=\"%s\">%s</a>", files[i], files[i]);
    }
    text_add(out, "</footer>\n");
}

void report_page(struct text *out, const struct report *self, const struct report_data *data, const char *folder)
{
    text_add(out, "%s<title>", head);
    plot_escape(out, self->last->name);
    text_add(out, " (%s)</title>\n%s</head>\n<body><main>\n", phase_name(self->last->phase), css);
    add_top(out, self, data);
    add_outcome(out, self);
    add_charts(out, self, data);
    add_plan(out, self->plan);
    add_shards(out, self->last);
    add_hosts(out, self->last);
    add_processes(out, self->last);
    add_events(out, data);
    if (self->command && self->command[0]) {
        text_add(out, "<h2>Once more</h2>\n<div class=\"card\"><pre><code>");
        plot_escape(out, self->command);
        text_add(out, "</code></pre></div>\n");
    }
    add_footer(out, folder);
    text_add(out, "</main></body></html>\n");
}
