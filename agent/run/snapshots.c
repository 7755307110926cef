#include "agent/run/snapshots.h"

#include <stdio.h>

#include "agent/log/log_file.h"
#include "proto/base/log.h"

void snapshots_init(struct snapshots *self, const struct run_config *config, uint64_t steps)
{
    bool kept = config->folder && config->folder[0] && config->learners.snapshot_every > 0;
    *self = (struct snapshots){.folder = config->folder, .every = kept ? (uint64_t)config->learners.snapshot_every : 0};
    if (kept)
        self->next = (steps / self->every + 1) * self->every;
}

void snapshots_take(struct snapshots *self, struct learner *learner, uint64_t steps)
{
    if (self->every == 0 || steps < self->next)
        return;
    self->next = (steps / self->every + 1) * self->every;
    if (!learner_leads(learner))
        return;
    char path[512], why[512];
    rp_error err = {0};
    snprintf(path, sizeof path, "%s/" SNAPSHOTS_FOLDER "/%012llu.weights", self->folder, (unsigned long long)steps);
    log_file_make_folders(path);
    if (learner_save(learner, path, &err) != RP_OK)
        log_line(LEVEL_ERROR, "A0210", "a snapshot of the learner could not be saved", "why=%s",
                 log_quote(why, sizeof why, err.text));
}
