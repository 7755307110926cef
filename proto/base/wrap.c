/* Breaks lines that are longer than a terminal between words. */
#include <string.h>

#include "proto/base/format.h"

/* Returns the columns of some bytes of UTF-8: one for each character. */
static uint32_t columns_of(const char *text, size_t bytes)
{
    uint32_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* Returns the column at which the rest of a line continues: below the last column of a table, or below the text after a label.
 * Two or more blanks separate columns; a column that begins beyond the middle leaves too little room and is not used. */
static uint32_t indent_of(const char *line, size_t bytes, uint32_t columns)
{
    size_t begin = strspn(line, " ");
    for (size_t i = begin; i + 2 < bytes; i++)
        if (line[i] == ' ' && line[i + 1] == ' ' && line[i + 2] != ' ' && columns_of(line, i + 2) <= columns / 2)
            begin = i + 2;
    return begin < bytes ? columns_of(line, begin) : 0;
}

/* Returns the bytes of the next piece: up to the last blank that fits, but at least one word. */
static size_t piece_of(const char *text, size_t bytes, uint32_t room)
{
    size_t fits = 0;
    if (columns_of(text, bytes) <= room)
        return bytes;
    for (size_t i = strspn(text, " "); i < bytes; i++) {
        if (text[i] != ' ')
            continue;
        if (fits > 0 && columns_of(text, i) > room)
            break;
        fits = i;
        if (columns_of(text, i) > room)
            break;
    }
    return fits > 0 ? fits : bytes;
}

static void wrap_line(struct text *out, const char *line, size_t bytes, uint32_t columns)
{
    uint32_t indent = indent_of(line, bytes, columns), taken = 0;
    for (bool first = true; first || bytes > 0; first = false) {
        size_t piece = piece_of(line, bytes, columns - taken);
        text_add(out, "%*s%.*s\n", (int)taken, "", (int)piece, line);
        line += piece;
        bytes -= piece;
        while (bytes > 0 && *line == ' ') {
            line++;
            bytes--;
        }
        taken = indent;
    }
}

void format_wrap(struct text *out, const char *text, uint32_t columns)
{
    for (const char *end; *text; text = *end ? end + 1 : end) {
        end = text + strcspn(text, "\n");
        wrap_line(out, text, (size_t)(end - text), columns > 20 ? columns : 20);
    }
}
