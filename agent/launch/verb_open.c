/* open: the page of a run. A live run has one already; that of a finished run, or of a broker alone, is served from here. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/launch.h"
#include "agent/launch/observe/run_folder.h"
#include "agent/launch/page/page.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/spawn.h"
#include "proto/base/error.h"

#define RUNS "runs"
#define WAIT_MS 1000

/* Opens the browser where there is a screen; the address is printed in any case. */
static void show(const char *url)
{
    const char *const argv[] = {"xdg-open", url, NULL};
    const struct spawn spawn = {.argv = argv, .in = SPAWN_NULL, .out = SPAWN_NULL, .err = SPAWN_NULL};
    int error;
    puts(url);
    fflush(stdout);
    if ((getenv("DISPLAY") || getenv("WAYLAND_DISPLAY")) && spawn_can_start(argv[0]))
        spawn_start(&spawn, &error);
}

static int serve(const struct page_options *options)
{
    rp_error err = {0};
    struct interrupts interrupts;
    if (interrupts_init(&interrupts, &err) != RP_OK)
        return launch_fail(&err);
    struct page *page = page_start(options, &err);
    if (!page) {
        interrupts_fini(&interrupts);
        return launch_fail(&err);
    }
    show(page_url(page));
    fputs("Ctrl-C ends the page\n", stderr);
    while (interrupts.asked == 0)
        interrupts_wait(&interrupts, WAIT_MS);
    page_stop(&page);
    interrupts_fini(&interrupts);
    return EXIT_FINE;
}

int launch_open(struct launch *launch)
{
    char folder[FOLDER_SIZE] = "";
    rp_error err = {0};
    const char *given = launch->argument ? launch->argument : launch->run;
    bool broker = given && strstr(given, "://");
    if (!broker && run_folder_find(RUNS, given, folder, &err) != RP_OK)
        return launch_fail(&err);
    char *url = !broker && !launch->http && run_folder_locked(folder) ? run_folder_read(folder, FOLDER_PAGE) : NULL;
    if (url) {
        show(url);
        free(url);
        return EXIT_FINE;
    }
    const struct page_options options = {.address = launch->http ? launch->http : "127.0.0.1:0",
                                         .folder = folder,
                                         .runs = RUNS,
                                         .service = broker ? given : "",
                                         .key_file = launch->key_file};
    return serve(&options);
}
