#include "agent/run/best.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/io.h"
#include "proto/base/log.h"
#include "proto/base/need.h"

#define STEPS "steps" /* the slot's format has it too: an actor that uses the file needs it */
#define RECORDS 4u

bool best_replaces(const struct best *fresh, const struct best *before)
{
    return !isnan(fresh->value) && (!before || !(fresh->value < before->value));
}

/* The learner's steps come last: a learner's whole state contains them already. */
static void list_record(struct best *best, struct tensor out[RECORDS])
{
    out[0] = tensor_vector("evaluation/return", RP_DTYPE_FLOAT64, &best->value, 1);
    out[1] = tensor_vector("evaluation/episodes", RP_DTYPE_UINT64, &best->episodes, 1);
    out[2] = tensor_vector("evaluation/environment_steps", RP_DTYPE_UINT64, &best->environment_steps, 1);
    out[3] = tensor_vector(STEPS, RP_DTYPE_UINT64, &best->learner_steps, 1);
}

rp_status best_read(const char *path, struct best *out, rp_error *err)
{
    struct tensor record[RECORDS];
    list_record(out, record);
    return weights_read_file(path, record, RECORDS, err);
}

static rp_status best_write(const char *path, const struct tensor *tensors, uint32_t n, const struct best *best,
                            rp_error *err)
{
    struct best copy = *best;
    struct tensor record[RECORDS], *all = need_alloc((n + RECORDS) * sizeof *all);
    list_record(&copy, record);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (strncmp(tensors[i].name, "evaluation/", 11) != 0 && strcmp(tensors[i].name, STEPS) != 0)
            all[kept++] = tensors[i];
    memcpy(all + kept, record, sizeof record);
    rp_status status = weights_write_file(path, all, kept + RECORDS, err);
    free(all);
    return status;
}

rp_status best_write_from(const char *path, const char *source, const struct best *best, rp_error *err)
{
    uint8_t *block = NULL;
    size_t size = 0;
    uint32_t n = 0;
    struct tensor *tensors = need_alloc(WEIGHTS_MAX_TENSORS * sizeof *tensors);
    rp_status status = weights_load_file(source, &block, &size, err);
    if (status == RP_OK)
        status = weights_list(block, size, tensors, WEIGHTS_MAX_TENSORS, &n, err);
    if (status == RP_OK)
        status = best_write(path, tensors, n, best, err);
    free(block);
    free(tensors);
    return status;
}

/* ---- over a process ---- */

void best_file_open(struct best_file *self, const char *folder, bool fresh)
{
    rp_error err = {0};
    *self = (struct best_file){0};
    if (!folder || !folder[0])
        return;
    snprintf(self->path, sizeof self->path, "%s/" BEST_WEIGHTS_FILE, folder);
    io_make_parents(self->path, 0755);
    if (fresh)
        unlink(self->path);
    if (access(self->path, F_OK) != 0)
        return;
    self->known = best_read(self->path, &self->best, &err) == RP_OK;
    if (!self->known) {
        char why[512];
        log_line(LEVEL_WARN, "A0305", "the best parameters so far cannot be read: the next evaluation replaces them",
                 "why=%s", log_quote(why, sizeof why, err.text));
    }
}

void best_file_offer(struct best_file *self, const struct tensor *tensors, uint32_t n, const struct best *fresh)
{
    rp_error err = {0};
    if (!self->path[0] || !best_replaces(fresh, self->known ? &self->best : NULL))
        return;
    if (best_write(self->path, tensors, n, fresh, &err) == RP_OK) {
        self->best = *fresh;
        self->known = true;
        return;
    }
    char why[512];
    log_line(LEVEL_ERROR, "A0304", "the parameters of the best evaluation could not be saved", "return=%.6g why=%s",
             fresh->value, log_quote(why, sizeof why, err.text));
}
