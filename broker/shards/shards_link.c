/* See shards.h: what the parent reads from its shards, and tells them and others. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/shards/shards_impl.h"
#include "proto/base/error.h"
#include "proto/base/log.h"

void shard_close_link(struct shard *self)
{
    if (self->link >= 0)
        close(self->link);
    self->link = -1;
    self->filled = 0;
    self->told = false;
}

static void print_shard(const struct parent *self, uint32_t number, FILE *out)
{
    static const char *const names[] = {"service", "ingest", "events", "http"};
    static const uint32_t which[] = {SHARD_TOLD_SERVICE, SHARD_TOLD_INGEST, SHARD_TOLD_EVENTS, SHARD_HTTP};
    for (uint32_t i = 0; i < 4; i++) {
        const char *value = self->shards[number].endpoints[which[i]];
        if (strcmp(value, "-") == 0)
            continue;
        if (number)
            fprintf(out, "shard.%u.", number);
        fprintf(out, "%s %s\n", names[i], value);
    }
}

static rp_status write_file(const struct parent *self, rp_error *err)
{
    char temporary[LINE_BYTES];
    if (!self->endpoints_file || !self->endpoints_file[0])
        return RP_OK;
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%ld", self->endpoints_file, (long)getpid()) >=
        sizeof temporary)
        return err_set(err, RP_INVALID_ARGUMENT, "the path of the endpoints file is too long");
    FILE *file = fopen(temporary, "w");
    for (uint32_t i = 0; file && i < self->n; i++)
        print_shard(self, i, file);
    bool ok = file && !ferror(file);
    if (file)
        ok = fclose(file) == 0 && ok;
    if (ok && rename(temporary, self->endpoints_file) == 0)
        return RP_OK;
    int error = errno;
    unlink(temporary);
    return err_set(err, RP_IO, "cannot write the endpoints to %s: %s", self->endpoints_file, strerror(error));
}

static void send_list(const struct parent *self, struct shard *shard)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (uint32_t i = 0; out && i < self->n; i++)
        fprintf(out, "%s%c", self->shards[i].endpoints[SHARD_TOLD_SERVICE],
                i + 1 < self->n ? SHARD_SEPARATOR[0] : '\n');
    if (out && fclose(out) == 0)
        for (size_t at = 0; at < size;) {
            ssize_t sent = send(shard->link, text + at, size - at, MSG_NOSIGNAL);
            if (sent <= 0)
                break; /* it has died, and is started again */
            at += (size_t)sent;
        }
    free(text);
    shard->told = false;
}

static void tell_all(struct parent *self)
{
    rp_error err = {0};
    for (uint32_t i = 0; i < self->n && !self->ready; i++)
        if (!self->shards[i].endpoints[0])
            return;
    if (!self->ready && write_file(self, &err) != RP_OK) {
        fprintf(stderr, "replay-broker: %s\n", err.text);
        self->failed = true;
        parent_stop(self, SIGTERM);
        return;
    }
    for (uint32_t i = 0; i < self->n; i++)
        if (self->shards[i].told)
            send_list(self, &self->shards[i]);
    for (uint32_t i = 0; i < self->n && !self->ready; i++)
        print_shard(self, i, stdout);
    if (!self->ready)
        log_line(LEVEL_INFO, "B0700", "shards started", "shards=%u service=%s", self->n,
                 self->shards[0].endpoints[SHARD_TOLD_SERVICE]);
    fflush(stdout);
    self->ready = true;
}

/* Takes the line that a shard has sent. */
static bool take_line(struct shard *self)
{
    char *words[SHARD_ENDPOINTS], *rest = NULL;
    uint32_t n = 0;
    for (char *word = strtok_r(self->line, SHARD_SEPARATOR "\n", &rest); word && n < SHARD_ENDPOINTS;
         word = strtok_r(NULL, SHARD_SEPARATOR "\n", &rest))
        words[n++] = word;
    if (n < SHARD_ENDPOINTS)
        return false;
    for (uint32_t i = 0; i < SHARD_ENDPOINTS; i++) {
        char *copy = strdup(words[i]);
        if (!copy)
            return false;
        free(self->endpoints[i]);
        self->endpoints[i] = copy;
    }
    return true;
}

void parent_read_link(struct parent *self, struct shard *shard)
{
    ssize_t got = recv(shard->link, shard->line + shard->filled, LINE_BYTES - 1 - shard->filled, 0);
    if (got <= 0) { /* its end is told by SIGCHLD */
        shard_close_link(shard);
        return;
    }
    shard->filled += (size_t)got;
    shard->line[shard->filled] = '\0';
    if (!strchr(shard->line, '\n'))
        return;
    shard->filled = 0;
    shard->told = take_line(shard);
    if (shard->told)
        tell_all(self);
    else if (shard->pid) /* no memory: it would wait for the list for ever */
        kill(shard->pid, SIGKILL);
}
