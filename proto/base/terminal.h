/* Draws frames on a terminal: its size, and lines that overwrite those of the last frame. */
#ifndef PROTO_BASE_TERMINAL_H
#define PROTO_BASE_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/format.h"

/* Gives the size of the terminal at standard output; 80 x 24 if there is none. */
void terminal_size(uint32_t *columns, uint32_t *rows);
/* True if the user's locale has UTF-8. Does not change this program's locale. */
bool terminal_has_utf8(void);
/* Adds the lines of a frame, from the cursor downwards. Each line overwrites the old line, the rest of the old line is cleared,
 * and so is everything below the last line. So nothing flickers. */
void terminal_add_frame(struct text *out, const char *frame);

#endif
