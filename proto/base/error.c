/* The error list as text, and helpers that fill an rp_error. */
#include "proto/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/utf8.h"

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

/* Formats a text. A text that does not fit is cut before an incomplete UTF-8 sequence. */
static void print(char *out, size_t size, const char *format, va_list args)
{
    int n = vsnprintf(out, size, format, args); /* NOLINT: clang 14 does not see va_start on x86-64 */
    if (n >= (int)size)
        out[utf8_whole(out, size - 1)] = '\0';
}

void err_fill(rp_error *err, rp_status status, const char *format, ...)
{
    if (!err)
        return;
    /* The arguments may point into err->text itself. */
    char text[sizeof err->text];
    va_list args;
    va_start(args, format);
    print(text, sizeof text, format, args);
    va_end(args);
    err->status = (int32_t)status;
    memcpy(err->text, text, strlen(text) + 1);
}

void err_prefix(rp_error *err, const char *format, ...)
{
    if (!err)
        return;
    char prefix[sizeof err->text];
    va_list args;
    va_start(args, format);
    print(prefix, sizeof prefix, format, args); /* NOLINT: the same */
    va_end(args);
    err_fill(err, (rp_status)err->status, "%s: %s", prefix, err->text);
}
