#include "proto/base/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

bool endpoint_is_any(const char *endpoint)
{
    static const char *const any[] = {"tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:"};
    for (size_t i = 0; i < sizeof any / sizeof any[0]; i++)
        if (strncmp(endpoint, any[i], strlen(any[i])) == 0)
            return true;
    return false;
}

bool endpoint_is_ipv6(const char *endpoint)
{
    return strncmp(endpoint, "tcp://[", 7) == 0 || strncmp(endpoint, "tcp://*:", 8) == 0;
}

char *endpoint_local(const char *endpoint)
{
    char *local = NULL;
    if (!endpoint_is_any(endpoint))
        return strdup(endpoint);
    return asprintf(&local, "tcp://127.0.0.1%s", strrchr(endpoint, ':')) < 0 ? NULL : local;
}

bool endpoint_is_loopback(const char *endpoint)
{
    static const char tcp[] = "tcp://";
    static const char *const hosts[] = {"localhost", "[::1]", "lo"};
    if (strncmp(endpoint, tcp, sizeof tcp - 1) != 0)
        return strncmp(endpoint, "ipc://", 6) == 0 || strncmp(endpoint, "inproc://", 9) == 0;
    const char *host = endpoint + sizeof tcp - 1, *colon = strrchr(host, ':');
    size_t size = colon ? (size_t)(colon - host) : strlen(host);
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        if (strlen(hosts[i]) == size && strncmp(host, hosts[i], size) == 0)
            return true;
    /* 127.0.0.0/8 in numbers: 127.example.org is somewhere else. */
    return strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") == size;
}

bool endpoint_with_host(const char *endpoint, const char *host, char *out, size_t size)
{
    const char *port = strrchr(endpoint, ':');
    bool replace = host && host[0] && strncmp(endpoint, "tcp://", 6) == 0 && !endpoint_is_loopback(endpoint);
    int n = replace ? snprintf(out, size, "tcp://%s%s", host, port) : snprintf(out, size, "%s", endpoint);
    if (n >= 0 && (size_t)n < size)
        return true;
    out[0] = '\0';
    return false;
}

bool endpoint_is_host(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t size = strlen(text);
    if (text[0] == '[') { /* "[fe80::1%eth0]" */
        size_t end = 1 + strspn(text + 1, "0123456789abcdefABCDEF:.");
        if (end > 1 && text[end] == '%')
            end += 1 + strspn(text + end + 1, plain);
        return size > 2 && end == size - 1 && text[end] == ']';
    }
    return size > 0 && strspn(text, plain) == size;
}

/* Returns the first word with "://" in it. */
static char *first_endpoint(const char *text)
{
    static const char ends[] = " \t\r\n\"',;}]";
    const char *sign = strstr(text, "://");
    if (!sign)
        return NULL;
    const char *start = sign;
    while (start > text && !strchr(" \t\r\n\"',;{[=", start[-1]))
        start--;
    return strndup(start, (size_t)(sign - start) + strcspn(sign, ends));
}

rp_status endpoint_from_file(const char *path, char **out, rp_error *err)
{
    char text[8192];
    FILE *file = fopen(path, "r");
    if (!file)
        return err_set(err, RP_IO, "the file '%s' cannot be read: %s", path, strerror(errno));
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    const char *service = strstr(text, "service");
    char *found = first_endpoint(service ? service : text);
    if (!found)
        return err_set(err, RP_NOT_FOUND, "'%s' names no service endpoint", path);
    *out = endpoint_local(found);
    free(found);
    return *out ? RP_OK : err_set(err, RP_NO_MEMORY, "no memory for an endpoint");
}

/* Appends the endpoint in a line to a list with commas. False: no memory. */
static bool append_endpoint(char **list, const char *line)
{
    char *found = first_endpoint(line), *local = found ? endpoint_local(found) : NULL, *joined = NULL;
    bool ok = !found || (local && asprintf(&joined, "%s,%s", *list, local) >= 0);
    free(found);
    free(local);
    if (joined && ok) {
        free(*list);
        *list = joined;
    }
    return ok;
}

rp_status endpoints_from_file(const char *path, char **out, rp_error *err)
{
    RP_TRY(endpoint_from_file(path, out, err));
    FILE *file = fopen(path, "r");
    char line[512];
    bool ok = file != NULL;
    while (ok && fgets(line, sizeof line, file)) {
        unsigned shard;
        int rest = 0;
        if (sscanf(line, "shard.%u.service%n", &shard, &rest) == 1 && rest > 0)
            ok = append_endpoint(out, line + rest);
    }
    if (file)
        fclose(file);
    if (ok)
        return RP_OK;
    free(*out);
    *out = NULL;
    return err_set(err, RP_IO, "the endpoints of the shards in '%s' cannot be read", path);
}
