/* A fast writer beside many sessions that hold credit and do not use it, next to the same writer alone. All of them are
 * libreplay's: a thin writer cannot begin with a window that holds less than its message. */
#include <stdio.h>

#include "bench/commands.h"
#include "bench/report.h"
#include "bench/run.h"

#define GOAL_IDLE 0.8
#define IDLE_SESSIONS 1000u
/* Time that the idle sessions have to give their credit up. */
#define WITHIN_SECONDS 2.0

int command_idle(struct options *options)
{
    static struct party beside, alone;
    static struct figures figures[2];
    uint32_t sessions = options->clients ? options->clients : IDLE_SESSIONS;
    options->clients = options->processes = 1;
    options->session = "expiry: 30s"; /* heartbeats of 1 s, in which credit is given up */
    options_settle(options);
    options->warm_seconds = options->quick ? 0.3 : WITHIN_SECONDS;
    options->seconds = options->quick ? 0.5 : options->seconds;
    struct options idle = *options;
    idle.clients = sessions;
    struct options shown = *options;
    shown.library = true;
    report_begin(&shown, "idle");
    bool ok = run_broker(options, options->items, &alone) && run_add_load(options, &alone, WORK_LIBRARY) &&
              run_broker(options, options->items, &beside) && run_add_load(&idle, &beside, WORK_IDLE) &&
              run_add_load(options, &beside, WORK_LIBRARY);
    const struct phase phases[] = {{&beside, GROUP_WRITE | GROUP_WATCH, false}, {&alone, GROUP_WRITE, false}};
    ok = ok && run_phases(options, phases, 2, figures);
    if (ok) {
        char what[80];
        snprintf(what, sizeof what, "insert, beside %u idle sessions", sessions);
        struct row row = {.what = what, .other = "alone", .goal = GOAL_IDLE};
        row.memory_per_item = beside.memory_per_item;
        row_fill(&row, figures, 0);
        report_row(&shown, &row);
    }
    report_end(&shown);
    run_end(&beside);
    run_end(&alone);
    return ok ? 0 : 1;
}
