#include "agent/launch/observe/history.h"

#include <errno.h>
#include <string.h>

#include "proto/base/error.h"

bool history_thin(struct history *self)
{
    if (!thin_file(&self->thin, self->path, "\"elapsed_s\": "))
        return false;
    FILE *file = fopen(self->path, "ae");
    if (self->file)
        fclose(self->file);
    self->file = file;
    self->cut = false;
    return file != NULL;
}

/* Ends a line that a crash has cut, so that the next line is whole. */
static void end_last_line(struct history *self)
{
    FILE *file = fopen(self->path, "re");
    bool cut = file && fseek(file, -1, SEEK_END) == 0 && fgetc(file) != '\n';
    if (file)
        fclose(file);
    if (cut)
        fputc('\n', self->file);
}

rp_status history_open(struct history *self, const char *path, rp_error *err)
{
    *self = (struct history){0};
    snprintf(self->path, sizeof self->path, "%s", path);
    self->file = fopen(path, "ae");
    if (!self->file)
        return err_set(err, RP_IO, "'%s' cannot be written: %s", path, strerror(errno));
    end_last_line(self);
    fflush(self->file);
    history_thin(self); /* a full disk does not keep a run from its start */
    return RP_OK;
}

void history_add(struct history *self, const char *text)
{
    if (!self->file && !(self->file = fopen(self->path, "ae")))
        return;
    /* A full disk may have cut the line before: this one stands apart from it. */
    bool written = fprintf(self->file, "%s%s\n", self->cut ? "\n" : "", text) > 0 && fflush(self->file) == 0;
    self->cut = !written;
    clearerr(self->file);
    if (thin_is_due(&self->thin))
        history_thin(self);
}

void history_close(struct history *self)
{
    if (self->file)
        fclose(self->file);
    self->file = NULL;
}
