/* What a launcher knows of a run beside its broker: where it is, its status, whether somebody works on it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/observe/status.h"
#include "agent/launch/page/run_page_impl.h"

/* A status that is younger than this is written by a launcher that works. */
#define FRESH_STATUS_S 30

/* ---- the broker ---- */

/* Where the broker listens now: as given, or as the launcher wrote it. Endpoints of another machine mean nothing here. */
static void find_service(const struct page_place *self, char out[256])
{
    struct folder_state state;
    snprintf(out, 256, "%s", self->service);
    if (!out[0] && self->folder[0] && run_folder_locked(self->folder) &&
        run_folder_read_state(self->folder, &state, NULL) == RP_OK && !run_folder_is_elsewhere(&state))
        snprintf(out, 256, "%s", state.service);
}

void page_place_find(void *place, struct page_door *out)
{
    const struct page_place *self = place;
    char path[1100];
    find_service(self, out->service);
    snprintf(path, sizeof path, "%s", self->key_file);
    if (!path[0] && self->folder[0]) {
        snprintf(path, sizeof path, "%s/keys/admin.key", self->folder);
        if (access(path, R_OK) != 0)
            path[0] = '\0';
    }
    out->has_key = path[0] && key_read(path, &out->key, NULL) == RP_OK && out->key.n_brokers > 0;
}

/* ---- the run ---- */

/* Name of the machine where the launcher works, if it is another one. */
static void find_node(const struct page_place *self, char out[FOLDER_NODE])
{
    struct folder_state state;
    out[0] = '\0';
    if (self->folder[0] && !self->service[0] && run_folder_read_state(self->folder, &state, NULL) == RP_OK &&
        run_folder_is_elsewhere(&state))
        memcpy(out, state.node, FOLDER_NODE);
}

/* A launcher writes the status every second. */
static bool is_fresh(const struct page_place *self)
{
    char path[FOLDER_SIZE + 16];
    struct stat st;
    return stat(run_folder_path(path, sizeof path, self->folder, FOLDER_STATUS), &st) == 0 &&
           time(NULL) - st.st_mtime < FRESH_STATUS_S;
}

static void tell_facts(const struct status *status, struct page_run *out)
{
    out->facts = (struct why_run){.actors = status->actors,
                                  .learners = status->learners,
                                  .actor_idle = status->actor_idle,
                                  .learner_idle = status->learner_idle,
                                  .cpu = status->cpu,
                                  .cores = status->cores,
                                  .others = status->others,
                                  .network = status->network_measured};
    out->has_facts = true;
}

static void say(struct page_run *out, const char *level, const char *text, const char *more)
{
    out->level = level;
    snprintf(out->why.text, sizeof out->why.text, "%s%s", text, more);
}

/* Sentences that are not the broker's. status is NULL if there is none. */
static void explain(const struct page_place *self, const struct status *status, bool folder_only, struct page_run *out)
{
    char ended[400];
    if (!self->folder[0])
        return;
    if (!out->alive) {
        const char *reason = status ? status->reason : "";
        snprintf(ended, sizeof ended, "%s%s.", reason[0] ? ": " : "", reason);
        say(out, status && status->phase == PHASE_FAILED ? "bad" : "good", "The run has ended", ended);
    } else if (!status) {
        say(out, "good", "The run is being prepared: replay-launch measures how many processes to start.", "");
        out->if_silent = true;
    } else if (folder_only) {
        say(out, "good", status->waits[0] ? status->waits : "The run goes on.", "");
        snprintf(out->why.advice, sizeof out->why.advice, "%s", status->advice);
    } else if (out->node[0]) {
        snprintf(ended, sizeof ended, "%s: this page shows what its folder says.", out->node);
        say(out, "good", "The run goes on on ", ended);
    }
}

/* Locks do not reach from one machine to another on all file systems. */
static void look(const struct page_place *self, bool folder_only, struct page_run *out)
{
    struct status_copy copy;
    out->status = self->folder[0] ? run_folder_read(self->folder, FOLDER_STATUS) : NULL;
    bool known = out->status && status_from_json(out->status, &copy);
    if (!known) {
        free(out->status);
        out->status = NULL;
    }
    find_node(self, out->node);
    bool signs = out->node[0] && known && copy.status.phase < PHASE_DONE && is_fresh(self);
    out->alive = self->folder[0] && (signs || run_folder_locked(self->folder));
    out->folder_only = folder_only || (self->folder[0] && (!out->alive || out->node[0]));
    if (known)
        tell_facts(&copy.status, out);
    explain(self, known ? &copy.status : NULL, folder_only, out);
    if (known)
        status_copy_fini(&copy);
}

void page_place_look(void *place, struct page_run *out)
{
    look(place, false, out);
}

void page_place_look_folder(void *place, struct page_run *out)
{
    look(place, true, out);
}
