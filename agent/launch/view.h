/* A status for people: the text of the view for a given size, and one plain line. It knows nothing of processes. */
#pragma once

#include "agent/launch/process/status.h"
#include "agent/view/tui.h"

/* Renders the view: at most `rows` lines, none wider than `columns` (0: any). utf8: block characters for bar and
 * sparkline, otherwise ASCII. */
void view_render(struct text *out, const struct status *status, uint32_t columns, uint32_t rows, bool utf8);
/* Renders one plain line without its end, for logs and pipes. */
void view_line(struct text *out, const struct status *status);
/* "▁▂▅█" of the last values, in this many columns (means of neighbours if there are more values). ASCII: " .:-=+*#". */
void view_sparkline(struct text *out, const double *values, uint32_t n, uint32_t columns, bool utf8);

/* The same as view_render, with colours, and with what keys have chosen. */
void view_draw(struct text *out, const struct status *status, const struct canvas_style *style, struct tui *tui);
