/* See log_csv.h. While the file is open, the columns in memory are those of its header. */
#include "agent/log/log_csv.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char fixed[] = "time,environment_steps,learner_steps";

void log_csv_init(struct log_csv *self, char *path)
{
    *self = (struct log_csv){.path = path};
    log_file_init(&self->file);
}

static void forget_columns(struct log_csv *self)
{
    for (uint32_t i = 0; i < self->n_columns; i++)
        free(self->columns[i]);
    free(self->columns);
    self->columns = NULL;
    self->n_columns = 0;
}

void log_csv_fini(struct log_csv *self)
{
    forget_columns(self);
    log_file_fini(&self->file);
    free(self->path);
    *self = (struct log_csv){0};
    log_file_init(&self->file);
}

static bool has_column(const struct log_csv *self, const char *name)
{
    for (uint32_t i = 0; i < self->n_columns; i++) {
        if (strcmp(self->columns[i], name) == 0)
            return true;
    }
    return false;
}

static bool add_column(struct log_csv *self, const char *name)
{
    char **columns = realloc(self->columns, (self->n_columns + 1) * sizeof *columns);
    if (!columns)
        return false;
    self->columns = columns;
    columns[self->n_columns] = strdup(name);
    return columns[self->n_columns] && ++self->n_columns;
}

/* Takes the names of the columns from a header, which is cut apart. */
static bool read_header(struct log_csv *self, char *line)
{
    line[strcspn(line, "\n")] = '\0';
    size_t n = strlen(fixed);
    if (strncmp(line, fixed, n) != 0 || (line[n] != ',' && line[n] != '\0')) {
        errno = EINVAL; /* a file of another program stays as it is */
        return false;
    }
    char *rest = NULL;
    for (char *name = strtok_r(line + n, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        if (!add_column(self, name))
            return false;
    }
    return true;
}

static bool open_file(struct log_csv *self)
{
    if (!log_file_open(&self->file, self->path, false))
        return false;
    if (self->file.size == 0)
        return true;
    FILE *in = fopen(self->path, "re");
    char *line = NULL;
    size_t room = 0;
    bool ok = in && getline(&line, &room, in) > 0 && read_header(self, line);
    int error = errno;
    free(line);
    if (in)
        fclose(in);
    if (!ok) {
        forget_columns(self);
        log_file_fini(&self->file);
        errno = error;
    }
    return ok;
}

/* Writes the table with `more` new columns at the end. in is NULL if there are no rows yet. */
static void write_wide(const struct log_csv *self, FILE *in, FILE *out, uint32_t more)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    fputs(fixed, out);
    for (uint32_t i = 0; i < self->n_columns; i++)
        fprintf(out, ",%s", self->columns[i]);
    fputc('\n', out);
    bool header = true;
    while (in && (n = getline(&line, &room, in)) > 0 && line[n - 1] == '\n') {
        if (!header) {
            fwrite(line, 1, (size_t)n - 1, out);
            for (uint32_t i = 0; i < more; i++)
                fputc(',', out);
            fputc('\n', out);
        }
        header = false;
    }
    free(line);
}

static bool write_table(const struct log_csv *self, const char *path, uint32_t more)
{
    FILE *in = fopen(self->path, "re");
    FILE *out = in ? fopen(path, "we") : NULL;
    bool ok = out != NULL;
    if (ok) {
        write_wide(self, self->file.size > 0 ? in : NULL, out, more);
        ok = !ferror(in) && fflush(out) == 0 && !ferror(out);
        /* Rows that are on the disk must not be lost to a new header, so the new file is synced. Without rows there
         * is nothing to lose, and a slow disk must not delay the first report. */
        ok = ok && (self->file.size == 0 || fsync(fileno(out)) == 0);
    }
    int error = errno;
    if (in)
        fclose(in);
    if (out)
        fclose(out);
    errno = error;
    return ok;
}

/* Replaces the file by one that has the columns in memory, the last `more` of them new. */
static bool replace_file(struct log_csv *self, uint32_t more)
{
    char *temporary;
    if (asprintf(&temporary, "%s.tmp", self->path) < 0)
        return false;
    bool ok = write_table(self, temporary, more) && rename(temporary, self->path) == 0;
    int error = errno;
    if (!ok)
        unlink(temporary);
    free(temporary);
    errno = error;
    return ok && log_file_open(&self->file, self->path, false);
}

/* Makes sure that every scalar has a column. On failure the columns are as they were, or the file is closed. */
static bool widen(struct log_csv *self, const struct agent_scalar *scalars, uint32_t n)
{
    uint32_t before = self->n_columns;
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++)
        ok = has_column(self, scalars[i].name) || add_column(self, scalars[i].name);
    if (ok && self->n_columns == before && self->file.size > 0)
        return true;
    if (ok && replace_file(self, self->n_columns - before))
        return true;
    while (self->n_columns > before)
        free(self->columns[--self->n_columns]);
    return false;
}

static void put_number(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, ",%.10g", value);
    else
        fputs(isnan(value) ? ",nan" : value > 0 ? ",inf" : ",-inf", out);
}

/* The caller frees the row. NULL: no memory. */
static char *format_row(const struct log_csv *self, const struct run_log_at *at, const struct agent_scalar *scalars,
                        uint32_t n, size_t *size)
{
    char *row = NULL;
    FILE *out = open_memstream(&row, size);
    if (!out)
        return NULL;
    fprintf(out, "%.6f,%" PRIu64 ",%" PRIu64, at->time_s, at->environment_steps, at->learner_steps);
    for (uint32_t i = 0; i < self->n_columns; i++) {
        uint32_t k = 0;
        while (k < n && strcmp(scalars[k].name, self->columns[i]) != 0)
            k++;
        if (k < n)
            put_number(out, scalars[k].value);
        else
            fputc(',', out);
    }
    fputc('\n', out);
    if (fclose(out) != 0) {
        free(row);
        return NULL;
    }
    return row;
}

bool log_csv_append(struct log_csv *self, const struct run_log_at *at, const struct agent_scalar *scalars, uint32_t n)
{
    if (self->file.fd < 0) {
        forget_columns(self);
        if (!open_file(self))
            return false;
    }
    if (!widen(self, scalars, n))
        return false;
    size_t size;
    char *row = format_row(self, at, scalars, n, &size);
    bool ok = row && log_file_append_line(&self->file, self->path, NULL, row, size);
    int error = errno;
    free(row);
    errno = error;
    return ok;
}
