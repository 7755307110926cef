/* Inserts and samples while Prometheus scrapes the broker and two pages poll it, against the same broker with nobody looking. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/commands.h"
#include "bench/report.h"
#include "bench/run.h"

#define GOAL_HTTP 0.98
#define SCRAPES_PER_SECOND 5u
#define PAGES 2u
#define POLLS_PER_SECOND 2u

/* What is asked for, and how often. */
static const struct {
    const char *path;
    uint32_t per_second;
} questions[] = {{"/metrics", SCRAPES_PER_SECOND},
                 {"/api/info", PAGES *POLLS_PER_SECOND},
                 {"/api/tables", PAGES *POLLS_PER_SECOND},
                 {"/api/sessions", PAGES *POLLS_PER_SECOND},
                 {"/api/why", PAGES *POLLS_PER_SECOND},
                 {"/api/state", PAGES}, /* the broker's own page, as its files ask */
                 {"/api/writers", PAGES}};
#define N_QUESTIONS (sizeof questions / sizeof questions[0])

struct watch {
    struct lane *lane;
    uint16_t port;
};

/* Asks once. False: there was no answer, or it is not what was asked for. */
static bool ask(uint16_t port, const char *path)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    char text[16384];
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int size = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    bool ok = fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0 && write(fd, text, (size_t)size) == size;
    ssize_t n = ok ? read(fd, text, sizeof text) : -1;
    ok = n > 12 && memcmp(text, "HTTP/1.1 200", 12) == 0;
    while (n > 0)
        n = read(fd, text, sizeof text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* The life of a process: everybody who looks. */
static void look(void *ctx)
{
    const struct watch *self = ctx;
    double due[N_QUESTIONS] = {0};
    lane_set_state(self->lane, LANE_READY);
    for (;;) {
        double now = children_now(), next = now + 1;
        for (size_t i = 0; i < N_QUESTIONS; i++) {
            if (now >= due[i] && !ask(self->port, questions[i].path)) {
                snprintf(self->lane->text, sizeof self->lane->text, "no answer to %s", questions[i].path);
                lane_set_state(self->lane, LANE_FAILED);
                exit(1);
            }
            if (now >= due[i]) /* after a pause it goes on from now */
                due[i] = (now - due[i] > 1 ? now : due[i]) + 1.0 / questions[i].per_second;
            next = due[i] < next ? due[i] : next;
        }
        double pause = next - children_now();
        if (pause > 0)
            usleep((useconds_t)(pause * 1e6));
    }
}

static bool add_watch(struct party *party)
{
    struct watch watch = {.lane = children_lane(), .port = child_http_port()};
    struct member *member = &party->members[party->n_members++];
    *member = (struct member){.lane = watch.lane, .groups = GROUP_WATCH};
    if (watch.port == 0) {
        fputs("replay-bench: the broker serves no HTTP\n", stderr);
        return false;
    }
    member->pid = child_start(look, &watch);
    return member->pid > 0 && children_await(member->lane, LANE_READY, 10);
}

static bool compare(const struct options *options, enum work work, const char *what)
{
    static struct party party;
    static struct figures figures[2];
    unsigned groups = work == WORK_INSERT ? GROUP_WRITE : GROUP_ASK;
    bool ok = run_broker(options, options->items, &party) && run_add_load(options, &party, work) && add_watch(&party);
    const struct phase phases[] = {{&party, groups | GROUP_WATCH, false}, {&party, groups, false}};
    ok = ok && run_phases(options, phases, 2, figures);
    if (ok) {
        struct row row = {.what = what, .other = "nobody looks", .goal = GOAL_HTTP};
        row.memory_per_item = party.memory_per_item;
        row_fill(&row, figures, work != WORK_INSERT);
        report_row(options, &row);
    }
    run_end(&party);
    return ok;
}

int command_http(struct options *options)
{
    options->extra = "http: 127.0.0.1:0\n";
    options_settle(options);
    report_begin(options, "http");
    bool ok = compare(options, WORK_INSERT, "insert, scraped and watched") &&
              compare(options, WORK_SAMPLE, "sample, scraped and watched");
    report_end(options);
    return ok ? 0 : 1;
}
