/* Keys of a terminal, and what they mean to a view: the same everywhere. */
#ifndef AGENT_LOOK_LOOK_H
#define AGENT_LOOK_LOOK_H

#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

#include "agent/look/sheet.h"

enum look_key {
    LOOK_KEY_NONE,
    LOOK_KEY_OTHER,
    LOOK_KEY_QUIT,
    LOOK_KEY_PAUSE,
    LOOK_KEY_SORT,
    LOOK_KEY_HELP,
    LOOK_KEY_UP,
    LOOK_KEY_DOWN,
    LOOK_KEY_PAGE_UP,
    LOOK_KEY_PAGE_DOWN
};

/* Standard input as a source of keys. Zero-initialised. */
struct look_keys {
    bool usable; /* standard input is a terminal that has not gone away */
    bool changed;
    struct termios before;
};

void look_keys_open(struct look_keys *self);
/* Gives the terminal back as it was. */
void look_keys_close(struct look_keys *self);
/* Reads the next key without waiting. In the background nothing is read, and the terminal is left alone. */
enum look_key look_keys_read(struct look_keys *self);

/* What the keys have chosen. Zero-initialised. */
struct look {
    bool quits; /* q quits the view; otherwise only Ctrl-C ends it, with the run */
    bool keys;  /* there are keys: the last line names them */
    bool paused, help;
    bool chosen;     /* the list was sorted or scrolled: it should be seen */
    uint32_t sort;   /* of the list's orders; counts on, the list takes it modulo their number */
    uint32_t first;  /* row of the list that is shown first */
    uint32_t page;   /* rows of the list that were shown */
    uint32_t n_rows; /* of the list */
};
enum look_news { LOOK_SAME, LOOK_CHANGED, LOOK_QUIT };
enum look_news look_take(struct look *self, enum look_key key);
/* Reads all keys that were pressed. */
enum look_news look_read(struct look *self, struct look_keys *keys);

/* Adds the text of the help. list: what is sorted, "sessions". */
void look_add_help(struct sheet *sheet, uint32_t rank, const struct look *self, const char *list);
/* Adds the last line, which names the keys. */
void look_add_footer(struct sheet *sheet, uint32_t rank, const struct look *self);

#endif
