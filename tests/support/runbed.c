#include "tests/support/runbed.h"

#include <signal.h>

#include "tests/support/runtext.h"

void runbed_open(struct runbed *self, const char *yaml, struct host_source *source)
{
    signal(SIGPIPE, SIG_IGN); /* as the launcher: a carrier may end while it is written to */
    *self = (struct runbed){.screen = screen_new(SCREEN_QUIET)};
    assert_int_equal(tempdir_enter(NULL), 0);
    self->config = runtext_read(yaml, (const char *const[]){"plan.cores=4", "plan.memory=1000000000", NULL});
    ok(guard_start(&self->guard, NULL, &err));
    const struct host_pool_options options = {.home.config = &self->config,
                                              .home.folder = tempdir,
                                              .home.config_path = "config.yaml",
                                              .home.here = tempdir,
                                              .home.programs = "/nowhere",
                                              .home.guard = &self->guard,
                                              .source = source};
    self->pool = host_pool_new(&options, &err);
    self->options = (struct run_options){.home.config = &self->config,
                                         .home.folder = tempdir,
                                         .home.guard = &self->guard,
                                         .screen = &self->screen,
                                         .hosts = self->pool};
    self->run = (struct run){.options = &self->options,
                             .config = &self->config,
                             .clock = clock_system(),
                             .members = self->list,
                             .actors_wanted = run_config_actors(&self->config)};
}

void runbed_close(struct runbed *self)
{
    run_hosts_fini(&self->run);
    free(self->run.events);
    host_pool_destroy(&self->pool);
    guard_stop(&self->guard);
    screen_destroy(&self->screen);
    run_config_free(&self->config);
    assert_int_equal(tempdir_leave(NULL), 0);
}

struct member *runbed_add(struct runbed *self, enum role role, uint32_t index)
{
    struct member *member = self->list[self->run.n_members] = &self->members[self->run.n_members];
    *member = (struct member){.role = role, .index = index, .wanted = true, .host = RUN_NO_HOST, .at = RUN_NO_HOST};
    self->run.n_members++;
    return member;
}
