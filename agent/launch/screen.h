/* Standard output while a run goes on: a view in place on a terminal, plain lines or JSON otherwise. */
#pragma once

#include "agent/launch/process/status.h"

/* SCREEN_AUTO is one of the last two: what standard output is. */
enum screen_mode { SCREEN_AUTO, SCREEN_QUIET, SCREEN_JSON, SCREEN_TERMINAL, SCREEN_LINES };

struct screen;
struct screen *screen_new(enum screen_mode mode);
/* Leaves the last frame standing and the cursor below it. */
void screen_destroy(struct screen **self);
/* On a terminal at most every 200 ms; plain lines every 5 s, JSON every second, and both when the phase changes. */
void screen_show(struct screen *self, const struct status *status);
/* Lets q end a view of a run that goes on without it; screen_quit says that q was pressed. */
void screen_follow(struct screen *self);
bool screen_quit(const struct screen *self);
/* True if a key was pressed since the last frame: then the next screen_show draws at once. */
bool screen_touched(struct screen *self);
/* Prints a message at once, above the view (quiet: only if loud; JSON: {"event": ...}). May have several lines. */
void screen_say(struct screen *self, bool loud, const char *format, ...) RP_PRINTF(3, 4);
