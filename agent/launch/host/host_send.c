/* Our programs, for a host that lacks them. The script of carrier.c says "need", gets the line "bundle" and then the bytes of that
 * file as they are, and says "got" when all of them are in place. Nothing else is sent meanwhile. The agent that follows has not
 * heard the first hello, so it gets another one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/launch/host/host_impl.h"
#include "proto/base/clock.h"

#define PIECE 65536u
#define PIPE_BYTES (1 << 20) /* the carrier takes this much between two visits of the launcher */

static void fail(struct host *self, const char *what, const char *why)
{
    struct clock clock = clock_system();
    char reason[512];
    snprintf(reason, sizeof reason, "our programs cannot be sent there: %.300s%s%s", what, why ? ": " : "",
             why ? why : "");
    host_lose(self, clock_now(&clock), reason);
}

void host_send_begin(struct host *self)
{
    struct host_sending *sending = &self->sending;
    if (self->state != HOST_CONNECTING || sending->fd >= 0 || sending->sent > 0)
        return;
    if (sending->bundle)
        sending->asked = true;
    else
        fail(self, "there is no bundle of them; write hosts[].programs", NULL);
}

/* Announces the bundle as soon as it is packed. */
static void begin(struct host *self, int64_t now_ns)
{
    struct host_sending *sending = &self->sending;
    rp_error err = {0};
    rp_status status = bundle_pack(sending->bundle, &err);
    sending->moved_ns = now_ns;
    if (status == RP_UNAVAILABLE)
        return;
    sending->asked = false;
    if (status != RP_OK) {
        fail(self, err.text, NULL);
        return;
    }
    sending->fd = open(sending->bundle->path, O_RDONLY | O_CLOEXEC);
    if (sending->fd < 0) {
        fail(self, sending->bundle->path, strerror(errno));
        return;
    }
    fcntl(self->in, F_SETPIPE_SZ, PIPE_BYTES);
    struct json_object *line = host_line_new("bundle");
    host_line_add_number(line, "size", sending->bundle->size);
    host_writer_put(&self->writer, line);
}

void host_send_feed(struct host *self, int64_t now_ns)
{
    struct host_sending *sending = &self->sending;
    char bytes[PIECE];
    if (sending->asked)
        begin(self, now_ns);
    while (sending->fd >= 0 && host_writer_room(&self->writer)) {
        ssize_t n = read(sending->fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 || (n == 0 && sending->sent < sending->bundle->size)) {
            fail(self, sending->bundle->path, n < 0 ? strerror(errno) : "it has become shorter");
            return;
        }
        if (n == 0)
            host_send_end(self);
        else
            host_writer_bytes(&self->writer, bytes, (size_t)n);
        host_writer_flush(&self->writer);
        sending->sent += n;
        sending->moved_ns = now_ns;
    }
}

void host_send_end(struct host *self)
{
    if (self->sending.fd >= 0)
        close(self->sending.fd);
    self->sending.fd = -1;
    self->sending.asked = false;
}

bool host_needs_bundle(const struct host *self)
{
    return self->sending.asked || self->sending.sent > 0;
}

int64_t host_sent(const struct host *self)
{
    return self->sending.sent;
}
