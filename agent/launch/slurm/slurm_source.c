#include "agent/launch/slurm/slurm_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/slurm/slurm.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/need.h"

#define POLL_NS (2 * NS_PER_S)
#define LOOK_LIMIT_NS (30 * NS_PER_S)
/* Pause after an order that Slurm refused. */
#define RETRY_NS (15 * NS_PER_S)
/* Looks in a row without any task after which the array is taken for cancelled. */
#define GONE_LOOKS 3u
/* Looks in a row with fewer tasks than wanted after which a message says so: tasks that are queued again are away for a moment. */
#define SHORT_LOOKS 5u
/* Tasks that one order may give back. */
#define MOST_REQUEUED 64u

/* What a program of Slurm is asked for: one thing at a time. */
enum order { ORDER_LOOK, ORDER_SUBMIT, ORDER_THROTTLE, ORDER_REQUEUE };

struct slurm_source {
    struct host_source hosts; /* first: the pool hands it back */
    struct slurm_source_options options;
    struct slurm_record record;
    char program[HOST_PATH + 32], script[FOLDER_SIZE + 32];
    uint32_t wanted;        /* tasks that should run */
    uint32_t throttle;      /* tasks that Slurm lets run now */
    struct slurm_job *jobs; /* tasks at the last look, by index */
    uint32_t n_jobs;
    bool *there;            /* by index: the pool knows this task as a host */
    struct host_pool *pool; /* of the present look */
    struct call call;
    enum order order;          /* of the call */
    uint32_t order_value;      /* throttle that the order sets */
    int64_t poll_ns, order_ns; /* earliest time of the next one */
    uint32_t empty_looks;
    uint32_t short_looks; /* looks in a row with fewer tasks than wanted */
    bool look_failed;     /* a message said so */
    bool unrecorded;      /* slurm.json lacks the number of the array */
};

/* ---- the array ---- */

static struct words submission(const struct slurm_source *self)
{
    struct words words = {0};
    words_put(&words, "sbatch", "--parsable");
    words_addf(&words, "--array=0-%u%%%u", self->record.tasks - 1, self->wanted);
    words_addf(&words, "--output=%s/logs/slurm-task-%%a.log", self->options.folder);
    words_put(&words, self->script, self->options.folder);
    words_addf(&words, "%" PRIu64, self->record.core);
    return words;
}

static rp_status take_array(struct slurm_source *self, uint64_t id, rp_error *err)
{
    self->record.array = id;
    self->throttle = self->wanted;
    self->empty_looks = self->short_looks = 0;
    slurm_say(false, "the actor array is job %" PRIu64 ": %u of %u tasks may run", id, self->wanted,
              self->record.tasks);
    rp_status status = slurm_record_write(self->options.folder, &self->record, err);
    self->unrecorded = status != RP_OK;
    return status;
}

/* Whether all tasks of an earlier leg's array are still in the queue. */
static bool is_whole(struct slurm_source *self)
{
    char name[24], *text = NULL;
    rp_error err = {0};
    if (self->record.array == 0)
        return false;
    snprintf(name, sizeof name, "%" PRIu64, self->record.array);
    if (slurm_run(WORDS("squeue", "-r", "-h", "-j", name, "-o", SLURM_FORMAT), 0, &text, &err) != RP_OK)
        return false;
    uint32_t n = slurm_parse_jobs(text, self->jobs, self->record.tasks), alive = 0;
    for (uint32_t i = 0; i < n; i++)
        alive += self->jobs[i].state != SLURM_GONE;
    free(text);
    return alive == self->record.tasks;
}

static rp_status take_over(struct slurm_source *self, uint32_t tasks, rp_error *err)
{
    if (self->record.tasks == tasks && is_whole(self)) {
        self->throttle = 0; /* not known: the first order sets it */
        slurm_say(false, "the actor array of the last leg, job %" PRIu64 ", is still there", self->record.array);
        return RP_OK;
    }
    RP_TRY(slurm_cancel(self->record.array, err));
    uint64_t id;
    self->record.array = 0;
    self->record.tasks = tasks;
    struct words words = submission(self);
    rp_status status = slurm_submit((const char *const *)words.list, &id, err);
    words_clear(&words);
    return status == RP_OK ? take_array(self, id, err) : status;
}

/* ---- hosts ---- */

static const char *task_name(uint32_t index, char out[HOST_NAME])
{
    snprintf(out, HOST_NAME, "task-%u", index);
    return out;
}

/* A node agent takes the address of the launcher's machine from what ssh sets. Slurm knows that address, too; the job has inherited
 * the variable from the login node, where it means the user's own machine. */
static const char become_node[] = "SSH_CONNECTION=$SLURM_LAUNCH_NODE_IPADDR; export SSH_CONNECTION; exec \"$0\" node";

static rp_status appear(struct slurm_source *self, const struct slurm_job *job, int64_t now_ns, rp_error *err)
{
    char name[HOST_NAME], id[40], cores[40];
    uint32_t each = run_config_slurm_each(self->options.config);
    snprintf(id, sizeof id, "--jobid=%" PRIu64, job->id);
    snprintf(cores, sizeof cores, "--" RUN_SLURM_CORES "=%u", each);
    const char *const argv[] = {"srun",        id,           "--overlap",    "--nodes=1", "--ntasks=1", cores,
                                "--mem=0",     "--mpi=none", "--unbuffered", "sh",        "-c",         become_node,
                                self->program, NULL};
    char **carrier = slurm_without_job(argv);
    rp_status status = host_pool_appear(self->pool, task_name(job->index, name), (const char *const *)carrier,
                                        (double)each, now_ns, err);
    words_free(&carrier);
    return status;
}

/* Tells the pool what has changed since the last look. */
static void tell_pool(struct slurm_source *self, int64_t now_ns)
{
    bool *runs = need_alloc(self->record.tasks * sizeof *runs);
    char name[HOST_NAME];
    for (uint32_t i = 0; i < self->n_jobs; i++) {
        const struct slurm_job *job = &self->jobs[i];
        rp_error err = {0};
        if (job->index >= self->record.tasks || job->state != SLURM_RUNNING)
            continue;
        runs[job->index] = true;
        if (!self->there[job->index] && appear(self, job, now_ns, &err) != RP_OK)
            slurm_say(true, "task %u of the actor array cannot be used: %s", job->index, err.text);
        self->there[job->index] = true;
    }
    for (uint32_t i = 0; i < self->record.tasks; i++) {
        if (self->there[i] && !runs[i])
            host_pool_vanish(self->pool, task_name(i, name));
        self->there[i] = runs[i];
    }
    free(runs);
}

/* Slurm queues a task again that was preempted or lost its node; one that somebody cancelled is gone for good. */
static void count_tasks(struct slurm_source *self)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < self->n_jobs; i++)
        left += self->jobs[i].state != SLURM_GONE;
    self->empty_looks = self->n_jobs > 0 ? 0 : self->empty_looks + 1;
    if (left == 0 || left >= self->wanted) {
        self->short_looks = 0;
        return;
    }
    self->short_looks += self->short_looks < UINT32_MAX;
    if (self->short_looks == SHORT_LOOKS)
        slurm_say(true,
                  "the actor array, job %" PRIu64
                  ", has %u of the %u tasks that the run wants: tasks that have ended for good "
                  "are not replaced. 'scancel %" PRIu64
                  "' ends the others, too, and the whole array is submitted again",
                  self->record.array, left, self->wanted, self->record.array);
}

static int by_index(const void *a, const void *b)
{
    const struct slurm_job *left = a, *right = b;
    return (left->index > right->index) - (left->index < right->index);
}

static void take_look(struct slurm_source *self, rp_status status, const rp_error *err, int64_t now_ns)
{
    bool unknown = status != RP_OK && strstr(err->text, "Invalid job id");
    self->poll_ns = now_ns + POLL_NS;
    if (status != RP_OK && !unknown) {
        if (!self->look_failed)
            slurm_say(true, "the actor array cannot be watched: %s", err->text);
        self->look_failed = true;
        return;
    }
    self->look_failed = false;
    self->n_jobs = unknown ? 0 : slurm_parse_jobs(self->call.out, self->jobs, self->record.tasks);
    /* The lowest indices become the first hosts: those that take actors first, and that are given back last. */
    qsort(self->jobs, self->n_jobs, sizeof *self->jobs, by_index);
    count_tasks(self);
    tell_pool(self, now_ns);
}

/* ---- orders ---- */

static void take(struct slurm_source *self, rp_status status, rp_error *err, int64_t now_ns)
{
    uint64_t id;
    if (self->order == ORDER_LOOK) {
        take_look(self, status, err, now_ns);
        return;
    }
    if (status == RP_OK && self->order == ORDER_THROTTLE)
        self->throttle = self->order_value;
    if (status == RP_OK && self->order == ORDER_SUBMIT)
        status = slurm_take_id(self->call.out, &id, err);
    if (status == RP_OK && self->order == ORDER_SUBMIT)
        status = take_array(self, id, err);
    if (status == RP_OK)
        return;
    slurm_say(true, "the actor array cannot be changed: %s", err->text);
    self->order_ns = now_ns + RETRY_NS;
}

static void begin(struct slurm_source *self, enum order order, const char *const *argv, int64_t now_ns)
{
    rp_error err = {0};
    self->order = order;
    rp_status status = slurm_call_start(&self->call, argv, LOOK_LIMIT_NS, &err);
    if (status != RP_OK)
        take(self, status, &err, now_ns);
}

static void submit_again(struct slurm_source *self, int64_t now_ns)
{
    struct words words = submission(self);
    slurm_say(true, "the actor array, job %" PRIu64 ", was cancelled: it is submitted again", self->record.array);
    begin(self, ORDER_SUBMIT, (const char *const *)words.list, now_ns);
    words_clear(&words);
}

/* Slurm lets as many tasks run as the throttle says; one that is lowered ends nobody. */
static void set_throttle(struct slurm_source *self, int64_t now_ns)
{
    char job[40], throttle[48];
    snprintf(job, sizeof job, "JobId=%" PRIu64, self->record.array);
    snprintf(throttle, sizeof throttle, "ArrayTaskThrottle=%u", self->wanted);
    self->order_value = self->wanted;
    begin(self, ORDER_THROTTLE, WORDS("scontrol", "update", job, throttle), now_ns);
}

/* Puts tasks beyond the throttle back into the queue, those with the highest indices first. They wait there until the throttle
 * is raised again; cancelled tasks would be gone. */
static void give_back(struct slurm_source *self, uint32_t surplus, int64_t now_ns)
{
    char list[MOST_REQUEUED * 32];
    size_t used = 0;
    surplus = surplus < MOST_REQUEUED ? surplus : MOST_REQUEUED;
    for (uint32_t i = self->n_jobs; i-- > 0 && surplus > 0;) {
        if (self->jobs[i].state != SLURM_RUNNING)
            continue;
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%" PRIu64 "_%u", used ? "," : "",
                                 self->record.array, self->jobs[i].index);
        self->jobs[i].state = SLURM_ENDING; /* until the next look */
        surplus--;
    }
    slurm_say(false, "the run needs %u task%s of the actor array: %s %s back", self->wanted,
              self->wanted == 1 ? "" : "s", list, strchr(list, ',') ? "go" : "goes");
    begin(self, ORDER_REQUEUE, WORDS("scontrol", "requeue", list), now_ns);
}

/* Each order follows from what is seen then: an order that is lost is given again. */
static void keep_size(struct slurm_source *self, int64_t now_ns)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < self->n_jobs; i++)
        running += self->jobs[i].state == SLURM_RUNNING;
    if (self->unrecorded) { /* tasks of an array that slurm.json does not name give up */
        self->unrecorded = slurm_record_write(self->options.folder, &self->record, NULL) != RP_OK;
        self->order_ns = self->unrecorded ? now_ns + POLL_NS : self->order_ns;
    } else if (self->empty_looks >= GONE_LOOKS)
        submit_again(self, now_ns);
    else if (self->throttle != self->wanted)
        set_throttle(self, now_ns);
    else if (running > self->wanted)
        give_back(self, running - self->wanted, now_ns);
}

/* ---- the source ---- */

static void look(struct host_source *hosts, struct host_pool *pool, int64_t now_ns)
{
    struct slurm_source *self = (struct slurm_source *)hosts;
    rp_error err = {0};
    char name[24];
    self->pool = pool;
    snprintf(name, sizeof name, "%" PRIu64, self->record.array);
    if (self->call.process.running && call_ended(&self->call))
        take(self, slurm_call_judge(&self->call, &err), &err, now_ns);
    if (!self->call.process.running && now_ns >= self->poll_ns && self->record.array != 0)
        begin(self, ORDER_LOOK, WORDS("squeue", "-r", "-h", "-j", name, "-o", SLURM_FORMAT), now_ns);
    if (!self->call.process.running && now_ns >= self->order_ns)
        keep_size(self, now_ns);
}

static void want(struct host_source *hosts, uint32_t actors)
{
    struct slurm_source *self = (struct slurm_source *)hosts;
    uint32_t tasks = run_config_slurm_tasks(self->options.config, actors);
    uint32_t least = 1, most = 1;
    run_config_slurm_actors(self->options.config, &least, &most);
    uint32_t fewest = run_config_slurm_tasks(self->options.config, least);
    tasks = tasks < fewest ? fewest : tasks;
    self->wanted = tasks < self->record.tasks ? tasks : self->record.tasks;
}

struct slurm_source *slurm_source_new(const struct slurm_source_options *options, rp_error *err)
{
    uint32_t least = 1, most = 1;
    run_config_slurm_actors(options->config, &least, &most);
    uint32_t tasks = run_config_slurm_tasks(options->config, most);
    struct slurm_source *self = need_alloc(sizeof *self);
    *self = (struct slurm_source){.hosts = {.look = look, .want = want},
                                  .options = *options,
                                  .jobs = need_alloc(tasks * sizeof *self->jobs),
                                  .there = need_alloc(tasks * sizeof *self->there)};
    /* With auto, all tasks are asked for, because the plan counts the hosts that there are. */
    uint32_t fixed = run_config_actors(options->config);
    self->wanted = fixed > 0 ? run_config_slurm_tasks(options->config, fixed) : tasks;
    slurm_record_read(options->folder, &self->record);
    snprintf(self->program, sizeof self->program, "%s/replay-launch", options->programs);
    if (self->record.script[0])
        snprintf(self->script, sizeof self->script, "%s", self->record.script);
    else
        run_folder_path(self->script, sizeof self->script, options->folder, SLURM_ACTORS_SCRIPT);
    if (take_over(self, tasks, err) != RP_OK)
        slurm_source_destroy(&self);
    return self;
}

void slurm_source_destroy(struct slurm_source **pointer)
{
    struct slurm_source *self = *pointer;
    rp_error err = {0};
    if (!self)
        return;
    call_fini(&self->call);
    if (slurm_cancel(self->record.array, &err) != RP_OK)
        slurm_say(true, "the actor array, job %" PRIu64 ", could not be cancelled: %s", self->record.array, err.text);
    free(self->jobs);
    free(self->there);
    free(self);
    *pointer = NULL;
}

struct host_source *slurm_source_hosts(struct slurm_source *self)
{
    return &self->hosts;
}
