/* See shards.h: the ports of the broker before this one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/shards/shards.h"
#include "proto/base/error.h"

#define LINE_BYTES 1024u

/* Gives an address that stands for any free port the port of another one. */
static rp_status take_port(char **address, const char *from, rp_error *err)
{
    char moved[LINE_BYTES];
    const char *own = strrchr(*address, ':'), *port = strrchr(from, ':');
    if (!own || (strcmp(own, ":0") != 0 && strcmp(own, ":*") != 0) || !port)
        return RP_OK;
    int digits = (int)strspn(port + 1, "0123456789");
    if (digits == 0)
        return RP_OK;
    snprintf(moved, sizeof moved, "%.*s%.*s", (int)(own - *address), *address, digits + 1, port);
    char *copy = strdup(moved);
    if (!copy)
        return err_set(err, RP_NO_MEMORY, "no memory for the endpoints of a shard");
    free(*address);
    *address = copy;
    return RP_OK;
}

/* Lines of shard 0 have plain names, those of the others begin with "shard.N.". */
static const char *own_name(const char *name, uint32_t shard)
{
    char prefix[24];
    int length = snprintf(prefix, sizeof prefix, "shard.%u.", shard);
    if (shard == 0)
        return name;
    return strncmp(name, prefix, (size_t)length) == 0 ? name + length : "";
}

rp_status shards_bind_again(struct broker_config *config, uint32_t shard, const char *endpoints_file, rp_error *err)
{
    struct {
        const char *name;
        char **address;
    } rows[] = {{"service", &config->service},
                {"ingest", &config->ingest},
                {"events", &config->events},
                {"http", &config->http}};
    char line[LINE_BYTES], name[64], value[LINE_BYTES];
    rp_status status = RP_OK;
    FILE *file = fopen(endpoints_file, "re");
    while (file && status == RP_OK && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%63s %1023s", name, value) != 2)
            continue;
        for (uint32_t i = 0; i < 4 && status == RP_OK; i++)
            if (strcmp(own_name(name, shard), rows[i].name) == 0)
                status = take_port(rows[i].address, value, err);
    }
    if (file)
        fclose(file);
    return status;
}
