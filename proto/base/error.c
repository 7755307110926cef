/* The error list as text, and helpers that fill an rp_error. */
#include "proto/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int32_t status;
    const char *name, *text;
} statuses[] = {
#define STATUS_ROW(name, code, text) {(code), #name, text},
    RP_STATUS_LIST(STATUS_ROW)
#undef STATUS_ROW
};

const char *rp_status_name(int32_t status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        if (statuses[i].status == status)
            return statuses[i].name;
    }
    return "UNKNOWN";
}

const char *rp_status_text(int32_t status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        if (statuses[i].status == status)
            return statuses[i].text;
    }
    return "a status that this version does not know";
}

const char *rp_version(void)
{
    return RP_VERSION;
}

/* Removes an incomplete UTF-8 sequence from the end of a text that was cut. */
static void trim_partial_utf8(char *text, size_t size)
{
    size_t n = strnlen(text, size);
    if (n + 1 < size)
        return;
    size_t start = n;
    while (start > 0 && n - start < 4 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (n - (start - 1) < want)
        text[start - 1] = '\0';
}

void err_fill(rp_error *err, rp_status status, const char *format, ...)
{
    if (!err)
        return;
    /* The arguments may point into err->text itself. */
    char text[sizeof err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args); /* NOLINT: clang 14 does not see va_start on x86-64 */
    va_end(args);
    trim_partial_utf8(text, sizeof text);
    err->status = (int32_t)status;
    memcpy(err->text, text, strlen(text) + 1);
}

void err_prefix(rp_error *err, const char *format, ...)
{
    if (!err)
        return;
    char text[sizeof err->text];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args); /* NOLINT: the same */
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    snprintf(text + used, sizeof text - used, ": %s", err->text);
    trim_partial_utf8(text, sizeof text);
    memcpy(err->text, text, strlen(text) + 1);
}
