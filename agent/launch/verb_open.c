/* open: the page of a run. A live run has one already; that of a finished run, or of a broker alone, is served from here. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/launch.h"
#include "agent/launch/observe/run_folder.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/spawn.h"
#include "agent/launch/view/run_page.h"
#include "proto/base/error.h"
#include "replay/client.h"

#define RUNS "runs"
#define WAIT_MS 1000
#define PROBE_MS 2000

/* Writes a page that leads on to the address: on a command line everybody would see the token. */
static bool write_door(const char *url, char *path, size_t size)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    snprintf(path, size, "%s/replay-page-XXXXXX.html", base && base[0] == '/' ? base : "/tmp");
    int fd = mkstemps(path, 5); /* mode 0600 */
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool ok = out && fprintf(out, "<!doctype html><meta http-equiv=refresh content=\"0; url=%s\">\n", url) > 0;
    if (out)
        ok = fclose(out) == 0 && ok;
    return ok;
}

/* Opens the browser where there is a screen; the address is printed in any case. */
static void show(const char *url)
{
    char path[256];
    const char *const argv[] = {"xdg-open", path, NULL};
    const struct spawn spawn = {.argv = argv, .in = SPAWN_NULL, .out = SPAWN_NULL, .err = SPAWN_NULL};
    int error;
    puts(url);
    fflush(stdout);
    if ((getenv("DISPLAY") || getenv("WAYLAND_DISPLAY")) && spawn_can_start(argv[0]) &&
        write_door(url, path, sizeof path))
        spawn_start(&spawn, &error);
}

/* Says so if the broker that was named does not answer: the page waits for it in silence. */
static void probe(const struct run_page_options *options)
{
    rp_error err = {0};
    const rp_client_options client = {
        .struct_size = sizeof client, .name = "page", .key_file = options->key_file ? options->key_file : ""};
    rp_client *probe = options->service[0] ? rp_client_connect(options->service, &client, PROBE_MS, &err) : NULL;
    if (probe)
        rp_client_destroy(&probe);
    else if (options->service[0])
        fprintf(stderr, LAUNCH_PROGRAM ": %s The page goes on trying.\n", err.text);
}

static int serve(const struct run_page_options *options)
{
    rp_error err = {0};
    struct interrupts interrupts;
    if (interrupts_init(&interrupts, &err) != RP_OK)
        return launch_fail(&err);
    struct run_page *page = run_page_start(options, &err);
    if (!page) {
        interrupts_fini(&interrupts);
        return launch_fail(&err);
    }
    show(run_page_url(page));
    fputs("Ctrl-C ends the page\n", stderr);
    probe(options);
    while (interrupts.asked == 0)
        interrupts_wait(&interrupts, WAIT_MS);
    run_page_stop(&page);
    interrupts_fini(&interrupts);
    return EXIT_FINE;
}

/* True if the run has keys: what its broker says is not for everybody on this machine. */
static bool has_keys(const char *folder)
{
    char path[FOLDER_SIZE + 32];
    return folder[0] && access(run_folder_path(path, sizeof path, folder, "keys"), F_OK) == 0;
}

/* True if a launcher of this machine works on the run: its page can be reached from here. */
static bool is_here(const char *folder)
{
    struct folder_state state = {0};
    return run_folder_locked(folder) && run_folder_read_state(folder, &state, NULL) == RP_OK &&
           !run_folder_is_elsewhere(&state);
}

int launch_open(struct launch *launch)
{
    char folder[FOLDER_SIZE] = "";
    rp_error err = {0};
    const char *given = launch->argument ? launch->argument : launch->run;
    bool broker = given && strstr(given, "://");
    if (!broker && run_folder_find_living(RUNS, given, folder, &err) != RP_OK)
        return launch_fail(&err);
    char *url = !broker && !launch->http && is_here(folder) ? run_folder_read(folder, FOLDER_PAGE) : NULL;
    if (url) {
        show(url);
        free(url);
        return EXIT_FINE;
    }
    const struct run_page_options options = {.address = launch->http ? launch->http : "127.0.0.1:0",
                                             .folder = folder,
                                             .runs = RUNS,
                                             .service = broker ? given : "",
                                             .secure = launch->key_file != NULL || has_keys(folder),
                                             .key_file = launch->key_file};
    return serve(&options);
}
