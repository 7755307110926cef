#include "bench/bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/process/spawn.h"
#include "broker/broker.h"
#include "proto/base/endpoint.h"
#include "proto/base/rng.h"
#include "proto/keys/allow.h"

#define MOST_LANES 256u
#define MOST_PROCESSES 256u

static struct {
    char dir[64];
    struct lane *lanes;
    uint32_t n_lanes, n_brokers, n_pids;
    pid_t pids[MOST_PROCESSES];
} all;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

double children_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

const char *children_dir(void)
{
    return all.dir;
}

/* ---- plain files ---- */

#define BLOCK_BYTES (1u << 20)

bool files_folder(const char *parent, char *out, size_t size)
{
    snprintf(out, size, "%s/disk-XXXXXX", parent ? parent : children_dir());
    if (mkdtemp(out))
        return true;
    fprintf(stderr, "replay-bench: cannot make a folder like %s: %s\n", out, strerror(errno));
    return false;
}

/* Calls fn with every file's path. */
static void each(const char *folder, void (*fn)(const char *path, void *ctx), void *ctx)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        fn(path, ctx);
    }
    if (dir)
        closedir(dir);
}

static void remove_one(const char *path, void *ctx)
{
    (void)ctx;
    unlink(path);
}

void files_remove(const char *folder)
{
    each(folder, remove_one, NULL);
    rmdir(folder);
}

static void add_bytes(const char *path, void *ctx)
{
    struct stat found;
    if (stat(path, &found) == 0)
        *(uint64_t *)ctx += (uint64_t)found.st_size;
}

uint64_t files_bytes(const char *folder)
{
    uint64_t bytes = 0;
    each(folder, add_bytes, &bytes);
    return bytes;
}

static uint8_t *block(void)
{
    static uint8_t data[BLOCK_BYTES];
    struct rng rng;
    rng_seed(&rng, 5);
    for (size_t i = 0; i < sizeof data; i += 8) {
        uint64_t value = rng_next(&rng);
        memcpy(data + i, &value, 8);
    }
    return data;
}

double files_write(const char *folder, uint64_t bytes)
{
    char path[4096];
    const uint8_t *data = block();
    snprintf(path, sizeof path, "%s/plain", folder);
    double start = children_now();
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    bool ok = file >= 0;
    for (uint64_t at = 0; ok && at < bytes; at += BLOCK_BYTES) {
        size_t size = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        ok = write(file, data, size) == (ssize_t)size;
    }
    ok = ok && fsync(file) == 0;
    double took = children_now() - start;
    if (!ok)
        fprintf(stderr, "replay-bench: cannot write %s: %s\n", path, strerror(errno));
    if (file >= 0)
        close(file);
    unlink(path);
    return ok ? took : -1;
}

static void read_one(const char *path, void *ctx)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    while (file >= 0 && read(file, ctx, BLOCK_BYTES) > 0) {
    }
    if (file >= 0)
        close(file);
}

double files_read(const char *folder)
{
    static uint8_t data[BLOCK_BYTES];
    double start = children_now();
    each(folder, read_one, data);
    return children_now() - start;
}

static void forget_one(const char *path, void *ctx)
{
    (void)ctx;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
}

void files_forget(const char *folder)
{
    each(folder, forget_one, NULL);
}

/* ---- keys ---- */

static struct {
    char folder[128]; /* empty: off */
    struct key broker, client;
} keys;

/* The key files of the broker's folder, and the client's for libreplay. */
static rp_status write_files(rp_error *err)
{
    char path[256];
    struct allowed_key allowed = {.name = "bench", .roles = KEY_ANY, .quota = {-1, -1, -1, -1, -1}};
    memcpy(allowed.public_key, keys.client.public_key, KEY_BYTES);
    snprintf(path, sizeof path, "%s/%s", keys.folder, ALLOW_BROKER_KEY);
    rp_status status = key_write(path, &keys.broker, true, err);
    if (status == RP_OK)
        status = allow_add(keys.folder, &allowed, err);
    snprintf(path, sizeof path, "%s/bench.key", keys.folder);
    if (status == RP_OK)
        status = key_write(path, &keys.client, true, err);
    setenv(KEY_FILE_VARIABLE, path, 1);
    return status;
}

bool curve_init(void)
{
    rp_error err = {0};
    if (!files_folder(NULL, keys.folder, sizeof keys.folder))
        return false;
    rp_status status = key_make(&keys.broker, "broker", &err);
    if (status == RP_OK)
        status = key_make(&keys.client, "bench", &err);
    if (status == RP_OK) {
        key_add_broker(&keys.client, keys.broker.public_key);
        status = write_files(&err);
    }
    if (status != RP_OK)
        fprintf(stderr, "replay-bench: %s\n", err.text);
    return status == RP_OK;
}

void curve_fini(void)
{
    if (keys.folder[0])
        files_remove(keys.folder);
    key_wipe(&keys.broker);
    key_wipe(&keys.client);
    keys.folder[0] = '\0';
}

const char *curve_folder(void)
{
    return keys.folder[0] ? keys.folder : NULL;
}

void curve_serve(void *socket)
{
    int one = 1;
    if (!keys.folder[0] || !socket)
        return;
    zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys.broker.secret_key, KEY_BYTES);
}

void curve_connect(void *socket)
{
    if (!keys.folder[0] || !socket)
        return;
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, keys.broker.public_key, KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys.client.public_key, KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys.client.secret_key, KEY_BYTES);
}

/* ---- processes ---- */

bool children_init(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(all.dir, sizeof all.dir, "%.40s/replay-bench-XXXXXX", parent && parent[0] ? parent : "/tmp");
    all.lanes = mmap(NULL, MOST_LANES * sizeof *all.lanes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all.lanes == MAP_FAILED || !mkdtemp(all.dir)) {
        fprintf(stderr, "replay-bench: cannot make a folder like %s: %s\n", all.dir, strerror(errno));
        return false;
    }
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return true;
}

void children_fini(void)
{
    while (all.n_pids)
        child_end(all.pids[all.n_pids - 1]);
    files_remove(all.dir);
}

struct lane *children_lane(void)
{
    struct lane *lane = &all.lanes[all.n_lanes++ % MOST_LANES];
    memset(lane, 0, sizeof *lane);
    return lane;
}

/* Forks. In the parent: the new pid, which is remembered. In the child: 0. */
static pid_t start(void)
{
    fflush(NULL);
    pid_t parent = getpid();
    pid_t pid = all.n_pids < MOST_PROCESSES ? fork() : -1;
    if (pid < 0)
        fprintf(stderr, "replay-bench: cannot start a process: %s\n", strerror(errno));
    if (pid > 0)
        all.pids[all.n_pids++] = pid;
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_DFL);
    }
    return pid;
}

pid_t child_start(void (*job)(void *ctx), void *ctx)
{
    pid_t pid = start();
    if (pid == 0) {
        broker_memory_settings();
        job(ctx);
        _exit(0);
    }
    return pid;
}

static void find_broker(char *path, size_t size)
{
    const char *given = getenv("RP_BROKER");
    if (given && given[0]) {
        snprintf(path, size, "%s", given);
        return;
    }
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    size_t at = slash ? (size_t)(slash + 1 - path) : 0;
    snprintf(path + at, size - at, "replay-broker");
}

static bool write_config(const struct options *options, uint64_t items, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    static const char *const names[] = {"service", "ingest", "events"};
    for (uint32_t i = 0; i < 3; i++) {
        if (i == 0 && options->service)
            fprintf(file, "service: %s\n", options->service);
        else if (options->ipc)
            fprintf(file, "%s: ipc://%s/%s%u\n", names[i], all.dir, names[i], all.n_brokers);
        else
            fprintf(file, "%s: tcp://127.0.0.1:0\n", names[i]);
    }
    if (curve_folder())
        fprintf(file, "security: {mode: curve, keys: %s}\n", curve_folder());
    /* Sessions outlive the pauses between measurements. */
    fprintf(file,
            "io_threads: %u\n"
            "memory_limit: %lluMiB\n"
            "peer_backlog_bytes: 8GiB\n"
            "session: {%s}\n"
            "log: {level: warn}\n"
            "tables:\n"
            "  - name: replay\n"
            "    max_size: %llu\n"
            "    sampler: {kind: prioritized, options: {exponent: 0.6}}\n"
            "    remover: {kind: fifo}\n"
            "    limiter: {%s}\n",
            options->io_threads, (unsigned long long)4096 + ((unsigned long long)items * (options->size + 256) >> 19),
            options->session ? options->session : "expiry: 3600s", (unsigned long long)items,
            options->limiter ? options->limiter : "kind: min_size, min_size: 1");
    fprintf(file, "%s%s", options->table_extra ? options->table_extra : "", options->extra ? options->extra : "");
    return fclose(file) == 0;
}

static bool read_service(const char *path, char *service, size_t size)
{
    char *found = NULL;
    bool ok = endpoints_from_file(path, &found, NULL) == RP_OK && strcspn(found, ",") < size;
    if (ok)
        snprintf(service, size, "%.*s", (int)strcspn(found, ","), found);
    free(found);
    return ok;
}

pid_t child_start_broker(const struct options *options, uint64_t items, char *service, size_t size)
{
    char program[4096], config[128], endpoints[128];
    find_broker(program, sizeof program);
    snprintf(config, sizeof config, "%s/broker%u.yaml", all.dir, all.n_brokers);
    snprintf(endpoints, sizeof endpoints, "%s/endpoints%u", all.dir, all.n_brokers);
    if (!write_config(options, items, config)) {
        fprintf(stderr, "replay-bench: cannot write %s: %s\n", config, strerror(errno));
        return -1;
    }
    all.n_brokers++;
    const char *const argv[] = {program, "-c", config, "--endpoints-file", endpoints, NULL};
    const struct spawn spawn = {
        .argv = argv, .in = SPAWN_KEEP, .out = SPAWN_NULL, .err = SPAWN_KEEP, .dies_with_us = true};
    int error = EAGAIN;
    pid_t pid = all.n_pids < MOST_PROCESSES ? spawn_start(&spawn, &error) : -1;
    if (pid < 0)
        fprintf(stderr, "replay-bench: cannot run %s: %s\n", program, strerror(error));
    else
        all.pids[all.n_pids++] = pid;
    double end = children_now() + 20;
    while (pid > 0 && !read_service(endpoints, service, size))
        if (!children_wait(0.005) || children_now() > end) {
            fprintf(stderr, "replay-bench: the broker %s did not start\n", program);
            return -1;
        }
    return pid;
}

uint16_t child_http_port(void)
{
    char path[128], line[256];
    unsigned port = 0;
    snprintf(path, sizeof path, "%s/endpoints%u", all.dir, all.n_brokers - 1);
    FILE *file = fopen(path, "r");
    while (file && port == 0 && fgets(line, sizeof line, file))
        sscanf(line, "http http://127.0.0.1:%u/", &port);
    if (file)
        fclose(file);
    return (uint16_t)port;
}

static void forget(pid_t pid)
{
    for (uint32_t i = 0; i < all.n_pids; i++)
        if (all.pids[i] == pid)
            all.pids[i--] = all.pids[--all.n_pids];
}

void child_end(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    forget(pid);
}

void child_pause(pid_t pid)
{
    kill(pid, SIGSTOP);
}

void child_go(pid_t pid)
{
    kill(pid, SIGCONT);
}

/* A process that ends by itself with status 0 has done its work; any other end is a failure. */
static bool look_after(void)
{
    for (uint32_t i = 0; i < all.n_pids; i++) {
        int status = 0;
        if (waitpid(all.pids[i], &status, WNOHANG) != all.pids[i])
            continue;
        forget(all.pids[i--]);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        for (uint32_t n = 0; n < MOST_LANES; n++)
            if (lane_get_state(&all.lanes[n]) == LANE_FAILED)
                fprintf(stderr, "replay-bench: %s\n", all.lanes[n].text);
        if (WIFSIGNALED(status))
            fprintf(stderr, "replay-bench: a process was ended by signal %d\n", WTERMSIG(status));
        return false;
    }
    return !interrupted;
}

bool children_wait(double seconds)
{
    double end = children_now() + seconds;
    for (;;) {
        double left = end - children_now();
        if (left <= 0)
            return true;
        struct timespec pause = {0, (long)((left < 0.1 ? left : 0.1) * 1e9)};
        nanosleep(&pause, NULL);
        if (!look_after())
            return false;
    }
}

bool children_await(struct lane *lane, enum lane_state state, double seconds)
{
    double end = children_now() + seconds;
    while (lane_get_state(lane) != (int)state) {
        if (!children_wait(0.002))
            return false;
        if (children_now() > end) {
            fprintf(stderr, "replay-bench: a process took more than %g s to start or to fill the table\n", seconds);
            return false;
        }
    }
    return true;
}

double child_cpu(pid_t pid)
{
    clockid_t id;
    struct timespec used;
    if (clock_getcpuclockid(pid, &id) != 0 || clock_gettime(id, &used) != 0)
        return 0;
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

double child_first_thread_cpu(pid_t pid)
{
    char path[64];
    unsigned long long used_ns = 0;
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/schedstat", (long)pid, (long)pid);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%llu", &used_ns) != 1)
        used_ns = 0;
    if (file)
        fclose(file);
    return (double)used_ns * 1e-9;
}

uint64_t child_resident(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kilobytes = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %llu", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return (uint64_t)kilobytes * 1024;
}
