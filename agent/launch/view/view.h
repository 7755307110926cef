/* A status for people. Rendering is pure text; the screen knows about terminals. */
#ifndef AGENT_LAUNCH_VIEW_H
#define AGENT_LAUNCH_VIEW_H

#include "agent/launch/observe/status.h"

/* The view: at most rows lines, none wider than columns (0: any). utf8: block characters for bar and sparkline, else ASCII. */
void view_render(struct text *out, const struct status *status, uint32_t columns, uint32_t rows, bool utf8);
/* One plain line without its end, for logs and pipes. */
void view_line(struct text *out, const struct status *status);
/* "▁▂▅█" of the last values, as many columns as asked for (means of neighbours where there are more). ASCII: " .:-=+*#". */
void view_sparkline(struct text *out, const double *values, uint32_t n, uint32_t columns, bool utf8);

/* Whether the user's locale has UTF-8. */
bool screen_has_utf8(void);

enum screen_mode { SCREEN_AUTO, SCREEN_QUIET, SCREEN_JSON };

/* Owns standard output while a run goes on: in place on a terminal, plain lines otherwise. */
struct screen;
struct screen *screen_new(enum screen_mode mode);
/* Leaves the last frame standing and the cursor below it. */
void screen_destroy(struct screen **self);
/* On a terminal at most every 200 ms; plain lines every 5 s, JSON every second, and both when the phase changes. */
void screen_show(struct screen *self, const struct status *status);
/* Something to be told at once, above the view (quiet: only if loud; JSON: {"event": ...}). May have several lines. */
void screen_say(struct screen *self, bool loud, const char *format, ...) RP_PRINTF(3, 4);

#endif
