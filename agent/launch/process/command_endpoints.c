/* Reads the endpoints that a broker has written into a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/process/command.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"

static rp_status take_endpoint(const char *path, const char *name, const char *value, char *out, size_t size,
                               rp_error *err)
{
    char *local = endpoint_local(value);
    bool fits = local && strlen(local) < size;
    if (fits)
        snprintf(out, size, "%s", local);
    free(local);
    return fits ? RP_OK : err_set(err, RP_INVALID_ARGUMENT, "the %s endpoint in '%s' is too long", name, path);
}

rp_status endpoints_read(const char *path, struct endpoints *out, rp_error *err)
{
    struct {
        const char *name;
        char *to;
    } wanted[] = {{"service", out->service}, {"ingest", out->ingest}, {"events", out->events}};
    char line[1024], name[16], value[1000];
    rp_status status = RP_OK;
    *out = (struct endpoints){0};
    FILE *file = fopen(path, "r");
    if (!file)
        return err_set(err, RP_IO, "the file '%s' cannot be read", path);
    while (status == RP_OK && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%15s %999s", name, value) != 2)
            continue;
        for (size_t i = 0; i < 3 && status == RP_OK; i++) {
            if (strcmp(name, wanted[i].name) == 0)
                status = take_endpoint(path, name, value, wanted[i].to, sizeof out->service, err);
        }
    }
    fclose(file);
    for (size_t i = 0; i < 3 && status == RP_OK; i++) {
        if (!strstr(wanted[i].to, "://"))
            status = err_set(err, RP_NOT_FOUND, "there is no %s endpoint in '%s'", wanted[i].name, path);
    }
    return status;
}
