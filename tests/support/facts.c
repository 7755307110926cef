#include "tests/support/facts.h"

#include <ctype.h>

#define MAX_TEXT 16384

static bool is_fact(const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isdigit((unsigned char)word[i]) || strchr("'_[]=/.:", word[i]) ||
            (i > 0 && isupper((unsigned char)word[i])))
            return true;
    return false;
}

void facts_of(const char *text, char *out, size_t size)
{
    size_t used = 0;
    while (*text && used + 3 < size) {
        if (*text == '\n') {
            out[used++] = '\n';
            out[used++] = ' ';
        }
        if (isspace((unsigned char)*text)) {
            text++;
            continue;
        }
        size_t n = strcspn(text, " \t\n"), first = strspn(text, "(\",;"), last = n;
        while (last > first && strchr(")\",;:.?!", text[last - 1]))
            last--;
        if (last > first && is_fact(text + first, last - first) && used + (last - first) + 2 < size) {
            memcpy(out + used, text + first, last - first);
            used += last - first;
            out[used++] = ' ';
        }
        text += n;
    }
    out[used] = '\0';
}

bool facts_within(const char *text, const char *part)
{
    static char said[MAX_TEXT], wanted[MAX_TEXT];
    facts_of(text, said + 1, sizeof said - 1);
    facts_of(part, wanted + 1, sizeof wanted - 1);
    said[0] = wanted[0] = ' '; /* whole words only */
    return wanted[1] ? strstr(said, wanted) != NULL : strstr(text, part) != NULL;
}

void facts_same(const char *text, const char *expected)
{
    static char said[MAX_TEXT], wanted[MAX_TEXT];
    facts_of(text, said, sizeof said);
    facts_of(expected, wanted, sizeof wanted);
    if (strcmp(said, wanted) != 0)
        fail_msg("\n%s\nsays something else than\n%s", text, expected);
}

void facts_said(const char *text, const char *part)
{
    if (!facts_within(text, part))
        fail_msg("'%s' does not say '%s'", text, part);
}
