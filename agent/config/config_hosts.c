/* The machines of a run: what a pattern of names stands for, mistakes in the list of hosts, and jobs under Slurm. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config/config.h"
#include "proto/base/clock.h"
#include "proto/base/endpoint.h"
#include "proto/base/need.h"
#include "proto/base/text.h"

/* ---- names ---- */

struct names {
    struct words words;
    uint32_t most;
    char why[160]; /* "": no mistake so far */
};

static void names_add(struct names *self, const char *text, size_t length)
{
    if (length == 0 || length >= RUN_HOST_NAME) {
        snprintf(self->why, sizeof self->why, "'%.40s' is %s", text,
                 length == 0 ? "an empty name" : "too long for a name: it may have 63 characters");
        return;
    }
    if (self->words.count == self->most) {
        snprintf(self->why, sizeof self->why, "these are more than %u hosts", self->most);
        return;
    }
    words_addf(&self->words, "%.*s", (int)length, text);
}

/* The next "[...]" that is a range; NULL: none. One with a colon is an IPv6 address. */
static const char *next_range(const char *text)
{
    for (const char *at = strchr(text, '['); at; at = strchr(at + 1, '[')) {
        const char *end = strchr(at, ']'), *colon = strchr(at, ':');
        if (!end || !colon || colon > end)
            return at;
    }
    return NULL;
}

/* Reads digits; returns how many there are, 0 to 9. */
static uint32_t read_number(const char *text, uint32_t *out)
{
    uint32_t digits = 0;
    for (*out = 0; digits < 10 && isdigit((unsigned char)text[digits]); digits++)
        *out = 10 * *out + (uint32_t)(text[digits] - '0');
    return digits < 10 ? digits : 0;
}

static void expand(struct names *self, const char *before, const char *rest);

/* Continues with every number from first to last, padded with zeros to `width` digits. */
static void expand_numbers(struct names *self, const char *before, uint32_t first, uint32_t last, uint32_t width,
                           const char *rest)
{
    for (uint32_t i = first; i <= last && !self->why[0]; i++) {
        char longer[512];
        if ((size_t)snprintf(longer, sizeof longer, "%s%0*u", before, (int)width, i) >= sizeof longer)
            snprintf(self->why, sizeof self->why, "'%.40s...' is too long", before);
        else
            expand(self, longer, rest);
    }
}

/* Continues with every number of "[1-3,7]", which begins at range. before: what comes before it. */
static void expand_range(struct names *self, const char *before, const char *range)
{
    const char *end = strchr(range, ']'), *at = range + 1;
    while (end && !self->why[0]) {
        uint32_t first, last, width = read_number(at, &first), digits = width;
        last = first;
        at += width;
        if (width > 0 && *at == '-') {
            digits = read_number(at + 1, &last);
            at += 1 + digits;
        }
        if (width == 0 || digits == 0 || last < first || (*at != ',' && at != end))
            break;
        expand_numbers(self, before, first, last, width, end + 1);
        if (at++ == end)
            return;
    }
    if (!self->why[0])
        snprintf(self->why, sizeof self->why, "'%.60s' is not a range: write cpu[1-4], cpu[01-12] or cpu[1,3-5]",
                 range);
}

/* before: what is expanded so far. */
static void expand(struct names *self, const char *before, const char *rest)
{
    const char *range = next_range(rest);
    char longer[512];
    int n = snprintf(longer, sizeof longer, "%s%.*s", before, range ? (int)(range - rest) : (int)strlen(rest), rest);
    if (n < 0 || (size_t)n >= sizeof longer)
        snprintf(self->why, sizeof self->why, "'%.40s...' is too long", rest);
    else if (range)
        expand_range(self, longer, range);
    else
        names_add(self, longer, (size_t)n);
}

char **run_config_host_names(const char *pattern, uint32_t most, char *why, size_t size)
{
    struct names self = {.most = most};
    expand(&self, "", pattern);
    snprintf(why, size, "%s", self.why);
    if (self.why[0])
        words_clear(&self.words);
    return self.words.list;
}

/* ---- what is in the list ---- */

bool host_config_takes(const struct host_config *self, const char *role)
{
    char *const *roles = self->roles.data;
    for (uint32_t i = 0; i < self->roles.count; i++)
        if (strcmp(roles[i], role) == 0)
            return true;
    return self->roles.count == 0 && strcmp(role, "actor") == 0;
}

bool host_config_is_local(const struct host_config *self)
{
    return self->command.count == 0 && strcmp(self->name, "local") == 0;
}

const struct host_config *run_config_home(const struct run_config *self)
{
    const struct host_config *hosts = self->hosts.data;
    for (uint32_t i = 0; i < self->hosts.count; i++)
        if (host_config_is_local(&hosts[i]))
            return &hosts[i];
    return NULL;
}

bool run_config_is_spread(const struct run_config *self)
{
    return self->launch.engine == ENGINE_SLURM || self->hosts.count > (run_config_home(self) ? 1u : 0u);
}

bool run_config_home_takes(const struct run_config *self, const char *role)
{
    const struct host_config *hosts = self->hosts.data, *home = run_config_home(self);
    if (home && host_config_takes(home, role))
        return true;
    if (self->launch.engine == ENGINE_SLURM)
        return strcmp(role, "actor") != 0;
    for (uint32_t i = 0; i < self->hosts.count; i++)
        if (host_config_takes(&hosts[i], role))
            return false;
    return true;
}

/* A broker of one machine: on loopback, on any free port. */
#define LOCAL_ENDPOINT "tcp://127.0.0.1:0"
#define OPEN_ENDPOINT "tcp://*:0" /* of IPv4 and of IPv6 */

static const char *const endpoint_keys[] = {"broker.service", "broker.ingest", "broker.events"};
#define ENDPOINTS (sizeof endpoint_keys / sizeof endpoint_keys[0])

static char **endpoint_of(struct broker_config *broker, size_t i)
{
    char **const rows[ENDPOINTS] = {&broker->service, &broker->ingest, &broker->events};
    return rows[i];
}

/* True if the file leaves the endpoint to the launcher. The own file of a run with one machine has LOCAL_ENDPOINT. */
static bool is_free(const char *endpoint, size_t i, const struct schema_report *report)
{
    return !schema_is_written(report, endpoint_keys[i]) || strcmp(endpoint, LOCAL_ENDPOINT) == 0;
}

void run_config_open_broker(struct run_config *self, const struct schema_report *report)
{
    for (size_t i = 0; i < ENDPOINTS; i++) {
        char **endpoint = endpoint_of(&self->broker, i);
        if (!is_free(*endpoint, i, report))
            continue;
        free(*endpoint);
        *endpoint = need_text(run_config_is_spread(self) ? OPEN_ENDPOINT : LOCAL_ENDPOINT);
    }
}

/* ---- mistakes ---- */

static void check_roles(const struct host_config *host, uint32_t index, struct schema_report *report)
{
    char *const *roles = host->roles.data;
    char path[48];
    for (uint32_t i = 0; i < host->roles.count; i++) {
        snprintf(path, sizeof path, "hosts[%u].roles[%u]", index, i);
        if (strcmp(roles[i], "actor") != 0 && strcmp(roles[i], "learner") != 0)
            schema_problem(report, path, "'%s' is no role of a host: there are actor and learner", roles[i]);
        else if (i > 0 && strcmp(roles[0], roles[i]) == 0)
            schema_problem(report, path, "names '%s' a second time", roles[i]);
    }
}

static void check_way(const struct host_config *host, uint32_t index, struct schema_report *report)
{
    char path[48];
    snprintf(path, sizeof path, "hosts[%u]", index);
    if (!host->name[0] && host->command.count == 0)
        schema_problem(report, path, "does not say how to reach it: write name, as ssh takes it, or command");
    if (host_config_is_local(host) && host->programs[0])
        schema_problem(report, path,
                       "is this machine, whose programs are those beside replay-launch: leave "
                       "programs out");
}

const char *host_config_pattern(const struct host_config *self, uint32_t index, char *out, size_t size)
{
    if (self->name[0])
        snprintf(out, size, "%s", self->name);
    else
        snprintf(out, size, "host%u", index + 1);
    return out;
}

/* Adds the names of one entry to those that were seen so far. */
static void check_names(const struct host_config *host, uint32_t index, char **seen, uint32_t *n,
                        struct schema_report *report)
{
    char pattern[512], why[160], path[48];
    snprintf(path, sizeof path, "hosts[%u].name", index);
    if (host->command.count > 0 && strchr(host->name, '[')) {
        schema_problem(report, path, "is the name of one host: write no range");
        return;
    }
    host_config_pattern(host, index, pattern, sizeof pattern);
    char **names = run_config_host_names(pattern, RUN_HOSTS_MOST - *n, why, sizeof why);
    if (!names) {
        schema_problem(report, path, "%s", why);
        return;
    }
    for (uint32_t i = 0; names[i]; i++) {
        bool known = false;
        for (uint32_t j = 0; j < *n && !known; j++)
            known = strcmp(seen[j], names[i]) == 0;
        if (known)
            schema_problem(report, path, "names '%s' a second time", names[i]);
        seen[(*n)++] = names[i];
    }
    free(names);
}

/* Machines that ssh or Slurm reaches cannot connect to this machine's loopback interface. */
static void check_reach(const struct run_config *config, struct schema_report *report)
{
    const struct host_config *hosts = config->hosts.data;
    struct broker_config broker = config->broker;
    bool far = config->launch.engine == ENGINE_SLURM;
    for (uint32_t i = 0; i < config->hosts.count; i++)
        far = far || (hosts[i].command.count == 0 && !host_config_is_local(&hosts[i]));
    for (size_t i = 0; i < ENDPOINTS && far && !broker.advertise[0]; i++) {
        const char *endpoint = *endpoint_of(&broker, i);
        if (!is_free(endpoint, i, report) && endpoint_is_loopback(endpoint))
            schema_problem(report, endpoint_keys[i],
                           "%s cannot be reached from other machines: leave it out, or write tcp://*:%zu", endpoint,
                           7600 + i);
    }
}

/* Files are sent into a folder of the hosts, so their names stay below the folder of the run's file. */
static void check_send(const struct run_config *config, struct schema_report *report)
{
    char *const *list = config->launch.send.data;
    for (uint32_t i = 0; i < config->launch.send.count; i++) {
        char path[48];
        bool up = strncmp(list[i], "..", 2) == 0 || strstr(list[i], "/../") != NULL || text_ends(list[i], "/..");
        snprintf(path, sizeof path, "launch.send[%u]", i);
        if (list[i][0] == '/' || list[i][0] == '\0' || up)
            schema_problem(report, path, "'%s' is not below the folder of this file: write a path such as my_env.py",
                           list[i]);
    }
}

void run_config_check_hosts(const struct run_config *self, struct schema_report *report)
{
    const struct host_config *hosts = self->hosts.data;
    uint32_t n = 0, homes = 0;
    check_send(self, report);
    check_reach(self, report);
    if (self->hosts.count == 0)
        return;
    if (self->launch.engine == ENGINE_SLURM) {
        schema_problem(report, "hosts", "Slurm gives the machines of a run with launch.engine: slurm; leave hosts out");
        return;
    }
    char **seen = need_alloc(RUN_HOSTS_MOST * sizeof *seen);
    for (uint32_t i = 0; i < self->hosts.count; i++) {
        char path[32];
        snprintf(path, sizeof path, "hosts[%u]", i);
        check_way(&hosts[i], i, report);
        check_roles(&hosts[i], i, report);
        bool local = host_config_is_local(&hosts[i]);
        if (local && homes++ > 0)
            schema_problem(report, path, "is this machine a second time");
        if (!local)
            check_names(&hosts[i], i, seen, &n, report);
    }
    for (uint32_t i = 0; i < n; i++)
        free(seen[i]);
    free(seen);
}

/* ---- launch.slurm: its numbers, and checks ---- */

#define MAX_EACH 1024
#define MAX_WARNING 65535 /* seconds, of Slurm */

/* Reads "8" or "4-64". */
static bool read_range(const char *text, uint32_t *least, uint32_t *most)
{
    char low[16] = "", high[16] = "";
    int64_t a, b;
    const char *dash = strchr(text, '-');
    size_t n = dash ? (size_t)(dash - text) : strlen(text);
    const char *rest = dash ? dash + 1 : text;
    if (n >= sizeof low || strlen(rest) >= sizeof high)
        return false;
    memcpy(low, text, n);
    memcpy(high, rest, strlen(rest));
    if (!schema_parse_int(low, &a) || !schema_parse_int(high, &b) || a < 1 || b < a || b > RUN_SLURM_ACTORS)
        return false;
    *least = (uint32_t)a;
    *most = (uint32_t)b;
    return true;
}

bool run_config_slurm_actors(const struct run_config *self, uint32_t *least, uint32_t *most)
{
    const char *text = self->launch.slurm.count;
    if (text[0])
        return read_range(text, least, most);
    bool fixed = self->actors.count > 0;
    *least = fixed ? (uint32_t)self->actors.count : 1;
    *most = (uint32_t)(fixed ? self->actors.count : self->plan.max_actors);
    return *most <= RUN_SLURM_ACTORS;
}

/* Returns the value of an option of sbatch, or NULL. */
static const char *option_of(const struct schema_list *list, const char *name)
{
    const rp_option *options = list->data;
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(options[i].name, name) == 0)
            return options[i].value;
    return NULL;
}

uint32_t run_config_slurm_each(const struct run_config *self)
{
    const char *text = option_of(&self->launch.slurm.actors, RUN_SLURM_CORES);
    int64_t each = 8;
    bool good = !text || (schema_parse_int(text, &each) && each >= 1 && each <= MAX_EACH);
    return good ? (uint32_t)each : 0;
}

int64_t run_config_slurm_warning(const struct run_config *self)
{
    static const char start[] = "B:USR1@"; /* what our scripts wait for */
    const char *text = option_of(&self->launch.slurm.core, RUN_SLURM_SIGNAL);
    int64_t seconds = 120;
    bool good =
        !text || (strncmp(text, start, sizeof start - 1) == 0 && schema_parse_int(text + sizeof start - 1, &seconds) &&
                  seconds >= 1 && seconds <= MAX_WARNING);
    return good ? seconds * NS_PER_S : 0;
}

uint32_t run_config_slurm_tasks(const struct run_config *self, uint32_t actors)
{
    uint32_t each = run_config_slurm_each(self);
    return each ? (actors + each - 1) / each : 0;
}

static void check_count(const struct run_config *config, struct schema_report *report)
{
    static const char path[] = "launch.slurm.count", cores[] = "launch.slurm.actors." RUN_SLURM_CORES;
    uint32_t least = 0, most = 0;
    if (!run_config_slurm_actors(config, &least, &most)) {
        schema_problem(report, path,
                       "'%s' is neither a number of actors, such as 8, nor a range from the least to the most, such as "
                       "4-64 (at most %u)",
                       config->launch.slurm.count, RUN_SLURM_ACTORS);
        return;
    }
    if (run_config_slurm_each(config) == 0)
        schema_problem(report, cores, "is the number of actors in each task: write a number between 1 and %d",
                       MAX_EACH);
    uint32_t tasks = run_config_slurm_tasks(config, most);
    if (tasks > RUN_SLURM_TASKS)
        schema_problem(
            report, cores,
            "%u actors need %u tasks with so few actors in each, and an array has at most %u: write a larger "
            "number",
            most, tasks, RUN_SLURM_TASKS);
    int64_t fixed = config->actors.count;
    if (fixed > 0 && (fixed < least || fixed > most))
        schema_problem(report, "actors.count",
                       "is %" PRId64 ", but launch.slurm.count allows %u to %u: write a number between them, or "
                       "auto",
                       fixed, least, most);
}

/* An option becomes a word of a line of a script. */
static void check_options(const struct schema_list *list, const char *path, struct schema_report *report)
{
    const rp_option *options = list->data;
    for (uint32_t i = 0; i < list->count; i++)
        if (options[i].name[0] == '-' || strpbrk(options[i].name, " \t\n\r=") || strpbrk(options[i].value, " \t\n\r"))
            schema_problem(report, path,
                           "'%s: %s' is no option of sbatch: write its name without dashes, and no blanks",
                           options[i].name, options[i].value);
}

void run_config_check_slurm(const struct run_config *self, struct schema_report *report)
{
    if (self->launch.engine != ENGINE_SLURM)
        return;
    check_count(self, report);
    if (run_config_slurm_warning(self) == 0)
        schema_problem(report, "launch.slurm.core." RUN_SLURM_SIGNAL,
                       "is how long before its time limit the job saves itself: write B:USR1@SECONDS, such as "
                       "B:USR1@300");
    check_options(&self->launch.slurm.core, "launch.slurm.core", report);
    check_options(&self->launch.slurm.actors, "launch.slurm.actors", report);
}

/* The range is written out, because the plan replaces auto by a number. */
static void complete_count(struct run_config *self)
{
    uint32_t least, most;
    char **count = &self->launch.slurm.count;
    if (!run_config_slurm_actors(self, &least, &most))
        return;
    self->plan.max_actors = most;
    if ((*count)[0])
        return;
    free(*count);
    *count = need_print("%u-%u", least, most);
}

void run_config_complete_slurm(struct run_config *self)
{
    if (self->launch.engine != ENGINE_SLURM)
        return;
    complete_count(self);
    if (config_folder(&self->broker))
        return;
    free(self->broker.folder);
    self->broker.folder = need_text("checkpoint");
    self->broker.journal_ns = JOURNAL_OFF;
}
