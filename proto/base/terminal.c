/* See terminal.h. */
#include "proto/base/terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void terminal_size(uint32_t *columns, uint32_t *rows)
{
    struct winsize size;
    *columns = 80;
    *rows = 24;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row) {
        *columns = size.ws_col;
        *rows = size.ws_row;
    }
}

bool terminal_has_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    if (!locale)
        return false;
    bool utf8 = strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    freelocale(locale);
    return utf8;
}

void terminal_add_frame(struct text *out, const char *frame)
{
    for (const char *at = frame; *at;) {
        size_t size = strcspn(at, "\n");
        text_add(out, "%.*s\x1b[K\n", (int)size, at);
        at += size + (at[size] == '\n');
    }
    text_add(out, "\x1b[J");
}
