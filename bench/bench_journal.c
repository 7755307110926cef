/* Inserts with the journal on, next to inserts without it. */
#include <stdio.h>

#include "bench/commands.h"
#include "bench/files.h"
#include "bench/report.h"
#include "bench/run.h"

#define GOAL_JOURNAL 0.95
#define OFFERED 500000.0

struct setting {
    const char *fsync;
    double rate;
    double goal;
    const char *what;
};

static bool compare(const struct options *given, const struct setting *setting)
{
    static struct party with, without;
    static struct figures figures[2];
    char folder[300], extra[600], what[120];
    if (!files_folder(given->dir, folder, sizeof folder))
        return false;
    /* Checkpoints keep the journal short; they are part of its cost. */
    snprintf(extra, sizeof extra, "journal: {dir: %s, fsync: %s}\ncheckpoint: {every: 0s, keep: 1, on_exit: false}\n",
             folder, setting->fsync);
    struct options options = *given, plain = *given;
    options.rate = plain.rate = setting->rate;
    options.extra = extra;
    bool ok = run_broker(&options, options.items, &with) && run_add_load(&options, &with, WORK_INSERT) &&
              run_broker(&plain, plain.items, &without) && run_add_load(&plain, &without, WORK_INSERT);
    const struct phase phases[] = {{&with, GROUP_WRITE, false}, {&without, GROUP_WRITE, false}};
    ok = ok && run_phases(&options, phases, 2, figures);
    if (ok) {
        snprintf(what, sizeof what, "insert, fsync %s, %s", setting->fsync, setting->what);
        struct row row = {.what = what, .other = "no journal", .goal = setting->goal};
        row.memory_per_item = with.memory_per_item;
        row_fill(&row, figures, 0);
        report_row(&options, &row);
    }
    run_end(&with);
    run_end(&without);
    files_remove(folder);
    return ok;
}

int command_journal(struct options *options)
{
    options_settle(options);
    double offered = options->rate > 0 ? options->rate : OFFERED;
    char what[60];
    snprintf(what, sizeof what, "%.0f items/s offered", offered);
    const struct setting settings[] = {{"interval", offered, GOAL_JOURNAL, what},
                                       {"interval", 0, 0, "as many as can be"},
                                       {"never", 0, 0, "as many as can be"},
                                       {"always", 0, 0, "as many as can be"}};
    report_begin(options, "journal");
    bool ok = true;
    for (uint32_t i = 0; ok && i < (options->quick ? 1 : 4); i++)
        ok = compare(options, &settings[i]);
    report_end(options);
    return ok ? 0 : 1;
}
