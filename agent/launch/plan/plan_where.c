/* Which host does what in a plan, for people: a row for each host, or for each group of equal hosts if there are many. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/plan/plan_impl.h"
#include "proto/base/format.h"

#define MANY 8u /* more hosts than these are shown in groups */
#define NEARLY_ALL 0.95

/* Hosts that are shown in one row: equal kinds and roles, and counts that differ by one at most. */
struct row {
    uint32_t first, last, n;
    uint32_t least, most; /* actors of a host */
    uint32_t learners;
    double cpu; /* of the busiest host */
};

/* ---- names ---- */

/* Splits "cpu12" into the length of "cpu" and 12; false: the name does not end with a number. */
static bool split(const char *name, size_t *length, unsigned long *number)
{
    size_t end = strlen(name), at = end;
    while (at > 0 && isdigit((unsigned char)name[at - 1]))
        at--;
    *length = at;
    *number = strtoul(name + at, NULL, 10);
    return at < end && at > 0 && end - at < 10 && (name[at] != '0' || end - at == 1);
}

/* "cpu[1-4]", or "cpu1 to gpu7" where names do not follow each other. */
static void add_name(struct text *text, const struct plan_input *input, const struct row *row)
{
    const char *first = input->hosts[row->first].name, *last = input->hosts[row->last].name;
    size_t length = 0, other = 0;
    unsigned long from = 0, to = 0;
    if (row->n == 1)
        text_add(text, "%s", first);
    else if (split(first, &length, &from) && split(last, &other, &to) && length == other &&
             strncmp(first, last, length) == 0 && to - from + 1 == row->n)
        text_add(text, "%.*s[%lu-%lu]", (int)length, first, from, to);
    else
        text_add(text, "%s to %s", first, last);
    if (row->n > 1)
        text_add(text, " (%u hosts, %.3g cores each)", row->n, input->hosts[row->first].cores);
}

/* ---- reasons ---- */

static bool any_measured(const struct plan_input *input)
{
    for (uint32_t i = 0; i < input->n_hosts; i++)
        if (input->hosts[i].curve.n > 0)
            return true;
    return false;
}

static bool is_measured(const struct plan_input *input, uint32_t host)
{
    uint32_t kind = input->hosts[host].kind;
    return kind < input->n_hosts && input->hosts[kind].curve.n > 0;
}

static const char *reason(const struct plan_input *input, const struct row *row)
{
    const struct plan_host *host = &input->hosts[row->first];
    bool full = host->cores > 0 && row->cpu >= NEARLY_ALL * host->cores;
    if (!host->actors && !host->learners && row->least == 0 && row->learners == 0)
        return row->first == 0 ? "broker and evaluator" : "left out: it was lost or did not answer";
    if (!host->actors)
        return row->learners == 0 ? "its learners are not needed"
               : row->first == 0  ? "broker, evaluator and learners"
                                  : "learners only";
    if (!any_measured(input))
        return "by free cores";
    if (!is_measured(input, row->first))
        return row->most > 0 ? "taken to be like a host that was measured" : "not needed";
    if (row->most == 0)
        return row->learners > 0 ? "actors add more elsewhere" : "not needed: actors add more elsewhere";
    return full ? "actors add most here: all its cores are busy" : "actors add most here";
}

/* ---- the table ---- */

static bool belongs(const struct plan_input *input, const struct plan_use *use, const struct row *row, uint32_t host)
{
    const struct plan_host *a = &input->hosts[row->first], *b = &input->hosts[host];
    uint32_t actors = use[host].actors;
    return input->n_hosts > MANY && row->first != 0 && a->kind == b->kind && a->cores == b->cores &&
           a->actors == b->actors && a->learners == b->learners && row->learners == use[host].learners &&
           actors + 1 >= row->most && actors <= row->least + 1;
}

static uint32_t make_rows(const struct plan_input *input, const struct plan_use *use, struct row *rows)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < input->n_hosts; i++) {
        uint32_t k = 0, actors = use[i].actors;
        while (k < n && !belongs(input, use, &rows[k], i))
            k++;
        if (k == n)
            rows[n++] = (struct row){.first = i, .least = actors, .most = actors, .learners = use[i].learners};
        struct row *row = &rows[k];
        row->last = i;
        row->n++;
        row->least = actors < row->least ? actors : row->least;
        row->most = actors > row->most ? actors : row->most;
        row->cpu = use[i].cpu > row->cpu ? use[i].cpu : row->cpu;
    }
    return n;
}

static void print_row(const struct plan_input *input, const struct row *row, struct grid *grid)
{
    struct text name = {0};
    const char *each = row->n > 1 ? " each" : "";
    add_name(&name, input, row);
    grid_add(grid, text_get(&name));
    text_fini(&name);
    if (row->least == row->most)
        grid_addf(grid, "%u%s", row->most, each);
    else
        grid_addf(grid, "%u or %u%s", row->least, row->most, each);
    grid_addf(grid, "%u%s", row->learners, row->learners > 0 ? each : "");
    if (input->hosts[row->first].cores > 0)
        grid_addf(grid, "%.3g of %.3g", row->cpu, input->hosts[row->first].cores);
    else
        grid_addf(grid, "%.3g", row->cpu);
    grid_add(grid, reason(input, row));
}

void plan_print_full(const struct plan_choice *choice, const struct plan_input *input, FILE *out)
{
    struct plan_use *use = calloc(input->n_hosts, sizeof *use);
    uint32_t fullest = 0, full = 0;
    double most = -1;
    bool known = use && plan_hosts_use(input, choice, use);
    for (uint32_t i = 0; known && i < input->n_hosts; i++) {
        double cores = input->hosts[i].cores, share = cores > 0 ? use[i].cpu / cores : 0;
        full += share >= NEARLY_ALL;
        if (share > most) {
            most = share;
            fullest = i;
        }
    }
    fprintf(out, "the cores of %s", input->hosts[fullest].name);
    if (full > 1)
        fprintf(out, " and %u other%s", full - 1, full == 2 ? "" : "s");
    fprintf(out, " (more processes would change nothing)\n");
    free(use);
}

void plan_print_where(const struct plan_choice *choice, const struct plan_input *input, FILE *out)
{
    static const char *const titles[] = {"where", ">actors", ">learners", ">cores used", "why"};
    struct plan_use *use = calloc(input->n_hosts, sizeof *use);
    struct row *rows = calloc(input->n_hosts, sizeof *rows);
    if (use && rows && plan_hosts_use(input, choice, use)) {
        struct grid grid;
        grid_init(&grid, titles, sizeof titles / sizeof titles[0]);
        uint32_t n = make_rows(input, use, rows);
        for (uint32_t i = 0; i < n; i++)
            print_row(input, &rows[i], &grid);
        grid_print(&grid, out);
        grid_fini(&grid);
    }
    free(rows);
    free(use);
}
