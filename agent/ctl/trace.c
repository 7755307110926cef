/* trace: records what the broker and its clients do for a while, into a file for Perfetto. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl/ctl.h"
#include "proto/base/error.h"

#define DEFAULT_S 5.0
#define MOST_S 60.0

/* Writes the text into a file, or to the standard output for "-". */
static rp_status write_file(const char *path, const char *text, rp_error *err)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdout : fopen(path, "w");
    if (!file)
        return err_set(err, RP_IO, "%s cannot be written: %s", path, strerror(errno));
    bool ok = fputs(text, file) >= 0 && fputc('\n', file) >= 0 && fflush(file) == 0;
    int reason = errno;
    if (!standard)
        ok = fclose(file) == 0 && ok;
    return ok ? RP_OK : err_set(err, RP_IO, "%s cannot be written: %s", path, strerror(reason));
}

int ctl_trace(struct ctl *ctl)
{
    rp_error err = {0};
    char *text = NULL;
    double seconds = DEFAULT_S;
    char *end = NULL;
    if (ctl->seconds)
        seconds = strtod(ctl->seconds, &end);
    if ((end && (*end || end == ctl->seconds)) || !(seconds >= 0.001 && seconds <= MOST_S))
        return ctl_usage("--seconds takes a number from 0.001 to %g, not '%s'", MOST_S, ctl->seconds);
    rp_status status = rp_admin_trace_json(ctl->client, (int64_t)(seconds * 1e3), &text, &err);
    if (status == RP_OK)
        status = write_file(ctl->argv[0], text, &err);
    rp_string_free(&text);
    if (status != RP_OK)
        return ctl_fail(ctl, &err);
    if (!ctl->json && strcmp(ctl->argv[0], "-") != 0)
        printf(
            "wrote %s: open it at https://ui.perfetto.dev or in Chrome's developer tools (Performance, Load profile)\n",
            ctl->argv[0]);
    return CTL_OK;
}
