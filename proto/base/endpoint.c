#include "proto/base/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"
#include "proto/base/need.h"

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
    return endpoint_is_any(endpoint) ? need_print("tcp://127.0.0.1%s", strrchr(endpoint, ':')) : need_text(endpoint);
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

rp_status endpoint_from_file(const char *path, const char *name, char **out, rp_error *err)
{
    char *line = NULL;
    size_t room = 0, length = strlen(name);
    *out = NULL;
    FILE *file = fopen(path, "r");
    if (!file)
        return err_set(err, RP_IO, "the file '%s' cannot be read: %s", path, strerror(errno));
    while (!*out && getline(&line, &room, file) > 0) {
        if (strncmp(line, name, length) != 0 || line[length] != ' ' || !strstr(line, "://"))
            continue;
        char *value = line + length + 1;
        value[strcspn(value, " \t\r\n")] = '\0';
        *out = endpoint_local(value);
    }
    free(line);
    fclose(file);
    return *out ? RP_OK : err_set(err, RP_NOT_FOUND, "'%s' names no %s endpoint", path, name);
}

rp_status endpoints_from_file(const char *path, char **out, rp_error *err)
{
    char name[32], *list, *next;
    rp_status status = endpoint_from_file(path, "service", &list, err);
    for (unsigned shard = 1; status == RP_OK; shard++) {
        snprintf(name, sizeof name, "shard.%u.service", shard);
        if (endpoint_from_file(path, name, &next, NULL) != RP_OK)
            break;
        char *longer = need_print("%s,%s", list, next);
        free(list);
        free(next);
        list = longer;
    }
    *out = list;
    return status;
}
