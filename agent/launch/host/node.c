/* The work folder, the mirror of its files, the processes, and the loop that serves the launcher. */
#include "agent/launch/host/node.h"

#include <czmq.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "agent/launch/host/host.h"
#include "agent/launch/host/host_file.h"
#include "agent/launch/host/host_line.h"
#include "agent/launch/process/interrupts.h"
#include "agent/launch/process/machine.h"
#include "agent/launch/process/process.h"
#include "agent/launch/process/spawn.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/io.h"
#include "proto/base/need.h"

#define LEASE_NS (15 * NS_PER_S) /* until the launcher says otherwise */
#define USAGE_NS NS_PER_S
#define NODE_TURN_MS 100
#define STANDARD_POLLS 4u
#define ALIVE_SHARE 15 /* signs of life for the guard in a lease */
#define CHILDREN_MOST 4096u
#define END_TURNS 2000 /* of a millisecond: how long killed processes may take to be gone */
#define REACH_S 5      /* for a connection to an address of home */
/* The mirror: files that it knows, the time between two passes, and pieces in one turn (so that output of processes gets through as
 * well). */
#define NODE_FILES_MOST 16384u
#define MIRROR_NS (400 * NS_PER_MS)
#define AGAIN_NS (5 * NS_PER_S)
#define PIECES_MOST 4

struct node_child {
    int64_t id;
    struct process process;
    int output;    /* our end of its pipe; -1: closed */
    int status;    /* after its end */
    uint64_t pass; /* of the mirror that must be over before its end is reported; 0: not known yet */
};

/* What the launcher has of a file. */
struct node_file {
    struct stat has;  /* the file that the launcher has, all of it */
    bool whole;       /* to be sent from its beginning */
    int64_t again_ns; /* when the launcher last asked for the whole file; 0: never */
    uint64_t seen;    /* the last pass that has found it */
};

struct mirror {
    zhashx_t *files;          /* struct node_file by name; one that is removed goes with the next pass */
    FTS *pass;                /* over the folder; NULL: none is under way */
    uint64_t begun, finished; /* numbers of passes */
    int64_t begun_ns;
    struct node_file *sending; /* NULL: no file is under way */
    struct host_file out;      /* the file under way */
};

struct node {
    struct host_reader reader;
    struct host_writer writer;
    struct host_noise noise;
    struct guard guard;
    struct interrupts interrupts;
    char work[512], here[512];
    int lock; /* on the work folder */
    struct host_folder folder;
    bool greeted, over;
    int64_t lease_ns, heard_ns, usage_ns, alive_ns; /* alive_ns: the last sign of life for the guard */
    struct machine_load load;
    struct node_child *children;
    uint32_t n, turn; /* turn: the child whose output is read first */
    bool ends_wait;   /* a process has ended, and its end waits for a pass of the mirror */
    struct mirror mirror;
    int answers[2]; /* pipe from the threads that probe: one struct host_probe each */
    struct pollfd *polls;
};

/* ---- work folder ---- */

static uint64_t free_bytes(const char *folder)
{
    struct statvfs info;
    return folder && folder[0] == '/' && statvfs(folder, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : 0;
}

/* Where the work folder is made: where the user says, or where there is more room. A learner's snapshots can fill the small file
 * system of XDG_RUNTIME_DIR, which is memory. */
static const char *choose_parent(void)
{
    const char *chosen = getenv("TMPDIR"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (chosen && chosen[0] == '/' && access(chosen, W_OK | X_OK) == 0)
        return chosen;
    return free_bytes(runtime) > free_bytes("/tmp") ? runtime : "/tmp";
}

/* Locks the folder as long as this process lives. -1: it is in use, being removed, or not ours to look at. */
static int lock_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0 &&
        info.st_uid == geteuid())
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    remove(path);
    return 0;
}

/* Removes the folders of agents that a power failure has ended together with their guards: keys and weights lie in them. */
static void sweep(const char *pattern)
{
    glob_t found = {0};
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) {
            int lock = lock_folder(found.gl_pathv[i]);
            if (lock < 0)
                continue;
            nftw(found.gl_pathv[i], remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
            close(lock);
        }
    globfree(&found);
}

/* The name has the host's: agents of several machines may share a folder in which a lock holds on its own machine alone. */
static rp_status make_work(struct node *self, rp_error *err)
{
    const char *parent = choose_parent();
    char host[65] = "", path[sizeof self->work - 64]; /* names of files follow */
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "%s/replay-node-%s-??????", parent, host);
    sweep(path);
    snprintf(path, sizeof path, "%s/replay-node-%s-XXXXXX", parent, host);
    self->lock = -1;
    for (int attempt = 0; attempt < 3 && self->lock < 0; attempt++) { /* another one that sweeps may take it */
        if (attempt > 0)
            rmdir(self->work);
        strcpy(self->work, path);
        if (!mkdtemp(self->work))
            return err_set(err, RP_IO, "no folder for the run's files can be made in %.300s: %s; set TMPDIR", parent,
                           strerror(errno));
        self->lock = lock_folder(self->work);
    }
    return RP_OK; /* without a lock on a file system that has none, where nobody sweeps */
}

/* ---- the mirror: what processes write here goes home ---- */

/* Files of the work folder go home, in passes over the folder: each sends the new bytes of a file that has grown, and the whole of a
 * file that is new or was replaced. Names that begin with a dot or end in ".tmp" are not sent, nor
 * are the files that only the launcher writes. */

static const char *const skipped[] = {"config.yaml", "keys", "here", NULL};

static void file_destroy(void **file)
{
    free(*file);
    *file = NULL;
}

/* Returns the file, a new one with nothing sent if there was none; NULL: there are too many. */
static struct node_file *find_or_add(struct mirror *self, const char *name)
{
    struct node_file *file = zhashx_lookup(self->files, name);
    if (file || zhashx_size(self->files) >= NODE_FILES_MOST)
        return file;
    file = need_alloc(sizeof *file);
    *file = (struct node_file){.whole = true, .seen = self->begun};
    zhashx_insert(self->files, name, file);
    return file;
}

/* A file of the same size that was written again is replaced, too. */
static bool is_replaced(const struct node_file *self, const struct stat *now)
{
    const struct stat *has = &self->has;
    return self->whole || has->st_ino != now->st_ino || has->st_dev != now->st_dev || now->st_size < has->st_size ||
           (now->st_size == has->st_size && memcmp(&has->st_mtim, &now->st_mtim, sizeof has->st_mtim) != 0);
}

/* level: 1 in the work folder itself. */
static bool is_skipped(const char *name, int level)
{
    if (name[0] == '.' || text_ends(name, ".tmp"))
        return true;
    for (size_t i = 0; level == 1 && skipped[i]; i++)
        if (strcmp(name, skipped[i]) == 0)
            return true;
    return false;
}

/* Opens the next file of the pass that has changed. False: none is left. */
static bool open_next(struct node *self)
{
    struct mirror *mirror = &self->mirror;
    for (FTSENT *at; mirror->pass && (at = fts_read(mirror->pass));) {
        const char *name = at->fts_path + strlen(self->work) + 1;
        bool skip = at->fts_level > 0 && is_skipped(at->fts_name, at->fts_level);
        if (skip)
            fts_set(mirror->pass, at, FTS_SKIP);
        struct node_file *file =
            !skip && at->fts_info == FTS_F && host_file_allows(name) ? find_or_add(mirror, name) : NULL;
        if (!file)
            continue;
        file->seen = mirror->begun;
        if ((!is_replaced(file, at->fts_statp) && at->fts_statp->st_size == file->has.st_size) ||
            host_file_open(&mirror->out, at->fts_path, name, O_NOFOLLOW, NULL) != RP_OK)
            continue;
        mirror->sending = file;
        mirror->out.replace = is_replaced(file, &mirror->out.info);
        mirror->out.offset = mirror->out.replace ? 0 : file->has.st_size;
        return true;
    }
    return false;
}

static void end_pass(struct mirror *self)
{
    if (self->pass)
        fts_close(self->pass);
    self->pass = NULL;
    self->finished = self->begun;
    /* A file that is made again under its name is another one, and its number may be that of the old one. */
    zlistx_t *names = zhashx_keys(self->files);
    for (const char *name = zlistx_first(names); name; name = zlistx_next(names)) {
        const struct node_file *file = zhashx_lookup(self->files, name);
        if (file->seen != self->begun)
            zhashx_delete(self->files, name);
    }
    zlistx_destroy(&names);
}

/* Goes on with the pass while the writer has room. A new one begins at once if an end waits for it. */
static void tend_mirror(struct node *self, int64_t now_ns)
{
    struct mirror *mirror = &self->mirror;
    if (!mirror->pass && (self->ends_wait || now_ns - mirror->begun_ns >= MIRROR_NS)) {
        mirror->pass = fts_open((char *const[]){self->work, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
        mirror->begun++;
        mirror->begun_ns = now_ns;
    }
    for (int piece = 0; piece < PIECES_MOST && mirror->begun > mirror->finished && host_writer_room(&self->writer);
         piece++) {
        if (!mirror->sending && !open_next(self))
            end_pass(mirror);
        else if (!host_file_send(&mirror->out, &self->writer)) {
            struct node_file *file = mirror->sending;
            if (mirror->out.offset == mirror->out.info.st_size) /* else it was cut, and the next pass sends it whole */
                *file = (struct node_file){.has = mirror->out.info, .again_ns = file->again_ns, .seen = file->seen};
            mirror->sending = NULL;
        }
    }
}

/* ---- processes ---- */

static struct node_child *find_child(struct node *self, int64_t id)
{
    for (uint32_t i = 0; i < self->n; i++)
        if (self->children[i].id == id)
            return &self->children[i];
    return NULL;
}

/* Says something that needs no bytes. */
#define say(self, ...) host_writer_put(&(self)->writer, &(struct host_line){__VA_ARGS__}, NULL, 0)

/* Says how a process is: when it has begun, about once a second, and at its end. */
static void say_process(struct node *self, struct node_child *child, pid_t pid)
{
    struct process_usage usage;
    if (!process_usage(&child->process, &usage) && child->process.running)
        return;
    say(self, .type = "process", .id = child->id, .pid = pid, .exited = !child->process.running, .cpu_ns = usage.cpu_ns,
        .memory = (double)usage.memory, .stopped = usage.stopped);
}

/* Starts a process whose output goes into a pipe, which is read only while the connection has room. */
static rp_status start(struct node *self, struct node_child *child, const char *name, const char *const *argv,
                       const char *const *environment, rp_error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return err_set(err, RP_IO, "could not make a pipe for the output of %s: %s", name, strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const struct process_options options = {.name = name,
                                            .argv = argv,
                                            .environment = environment,
                                            .streams = (const int[]){SPAWN_NULL, ends[1], ends[1]},
                                            .guard = &self->guard};
    rp_status status = process_start(&child->process, &options, clock_ns(), err);
    close(ends[1]);
    if (status == RP_OK)
        child->output = ends[0];
    else
        close(ends[0]);
    return status;
}

/* The words of an order to start: those of the command, NULL, the environment, NULL. They lie in the message; NULL: it is damaged. */
static const char **split_words(const struct host_message *message)
{
    if (message->size == 0 || message->bytes[message->size - 1] != '\0' || message->line->words <= 0)
        return NULL;
    const char *at = (const char *)message->bytes, *end = at + message->size;
    const char **list = need_alloc((message->size + 2) * sizeof *list);
    int64_t n = 0;
    for (size_t i = 0; at < end; at += strlen(at) + 1) {
        list[i++] = at;
        i += ++n == message->line->words;
    }
    if (n >= message->line->words)
        return list;
    free(list);
    return NULL;
}

static void on_start(void *context, const struct host_message *message)
{
    struct node *self = context;
    const struct host_line *line = message->line;
    const char **words = split_words(message), *damaged = NULL;
    struct node_child child = {.id = line->id};
    rp_error err = {0};
    if (!line->name || !line->name[0] || !words || find_child(self, line->id))
        damaged = "the order to start is damaged";
    else if (self->n == CHILDREN_MOST)
        damaged = "the node agent has no room for one more process";
    if (!damaged && start(self, &child, line->name, words, words + line->words + 1, &err) == RP_OK) {
        self->children = need_resize(self->children, self->n + 1, sizeof *self->children);
        self->children[self->n++] = child;
        say_process(self, &child, child.process.pid);
    } else {
        say(self, .type = "ended", .id = line->id, .status = (damaged ? 126 : 127) << 8,
            .text = damaged ? damaged : err.text);
    }
    free(words);
}

/* Forwards what one child has printed, at most one line's worth. True: there may be more. */
static bool forward(struct node *self, struct node_child *child)
{
    uint8_t bytes[HOST_DATA_MOST];
    ssize_t n = read(child->output, bytes, sizeof bytes);
    if (n > 0) {
        host_writer_put(&self->writer, &(struct host_line){.type = "output", .id = child->id}, bytes, (size_t)n);
        return true;
    }
    /* A program that left the group may hold the pipe of a process that has ended: it is not waited for. */
    if (n == 0 || !child->process.running || (errno != EAGAIN && errno != EINTR)) {
        close(child->output);
        child->output = -1;
    }
    return false;
}

/* Forwards output as long as the queue has room, and reports ends: each after the last output and after a whole pass of
 * the mirror. */
static void tend_children(struct node *self)
{
    for (uint32_t i = 0; i < self->n; i++) {
        struct node_child *child = &self->children[i];
        /* The end itself is told at once: what the process has written may take long to follow. */
        pid_t pid = child->process.pid;
        if (process_ended(&child->process, &child->status))
            say_process(self, child, pid);
    }
    for (bool more = self->n > 0; more && host_writer_room(&self->writer); self->turn++) {
        more = false;
        for (uint32_t i = 0; i < self->n && host_writer_room(&self->writer); i++) {
            struct node_child *child = &self->children[(self->turn + i) % self->n];
            more |= child->output >= 0 && forward(self, child);
        }
    }
    self->ends_wait = false;
    for (uint32_t i = self->n; i-- > 0;) {
        struct node_child *child = &self->children[i];
        if (child->process.running || child->output >= 0)
            continue;
        if (child->pass == 0)
            child->pass = self->mirror.begun + 1;
        if (self->mirror.finished >= child->pass) {
            say(self, .type = "ended", .id = child->id, .status = child->status);
            *child = self->children[--self->n];
        } else {
            self->ends_wait = true;
        }
    }
}

static void report_usage(struct node *self, int64_t now_ns)
{
    struct machine_load load;
    if (now_ns - self->usage_ns < USAGE_NS)
        return;
    self->usage_ns = now_ns;
    say(self, .type = "load", .cpu = machine_load_read(&load) ? machine_load_busy(&self->load, &load) : 0.0);
    self->load = load;
    for (uint32_t i = 0; i < self->n; i++)
        if (self->children[i].process.running)
            say_process(self, &self->children[i], self->children[i].process.pid);
}

/* Kills all, and waits for their ends. */
static void end_children(struct node *self)
{
    bool left = true;
    for (uint32_t i = 0; i < self->n; i++)
        process_kill(&self->children[i].process);
    for (int turn = 0; left && turn < END_TURNS; turn++) {
        left = false;
        for (uint32_t i = 0; i < self->n; i++) {
            struct node_child *child = &self->children[i];
            left |= child->process.running && !process_ended(&child->process, &child->status);
        }
        if (left)
            nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
    }
    free(self->children);
}

/* ---- what the launcher asks for ---- */

static bool is_folder(const char *path)
{
    struct stat info;
    return path && path[0] == '/' && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Takes what the launcher says of itself, and answers with the facts of this machine. */
static void on_hello(void *context, const struct host_message *message)
{
    const struct host_line *line = message->line;
    struct node *self = context;
    char hostname[256] = "", model[160], path[PATH_MAX], package[PATH_MAX + 64], address[64] = "";
    const char *connection = getenv("SSH_CONNECTION");
    if (self->greeted)
        return;
    self->greeted = true;
    self->lease_ns = line->lease_ms > 0 && line->lease_ms <= INT32_MAX ? line->lease_ms * NS_PER_MS : LEASE_NS;
    guard_lease(&self->guard, self->lease_ns);
    if (is_folder(line->here) && strlen(line->here) < sizeof self->here)
        snprintf(self->here, sizeof self->here, "%s", line->here);
    else
        snprintf(self->here, sizeof self->here, "%.500s/here", self->work);
    mkdir(self->here, 0700); /* there already, if it is a folder of the user's */
    /* Relative paths of the run's file mean the same as at home, where there is such a folder. */
    if ((!is_folder(line->cwd) || chdir(line->cwd) != 0) && chdir(self->here) != 0)
        self->over = true;
    gethostname(hostname, sizeof hostname - 1);
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *programs = dirname(path); /* where the others are as well */
    snprintf(package, sizeof package, "%s/lib/python/replaybus/__init__.py", programs);
    if (connection)
        snprintf(address, sizeof address, "%.*s", (int)strcspn(connection, " "), connection);
    say(self, .type = "ready", .version = rp_version(), .hostname = hostname,
        .model = machine_model(model, sizeof model), .cores = machine_cores(), .memory = machine_memory(),
        .work = self->work, .programs = programs, .here = self->here, .address = address,
        .python = access(package, R_OK) == 0);
}

static void node_on_file(void *context, const struct host_message *message)
{
    struct node *self = context;
    struct stat info = {0};
    const struct host_line *line = message->line;
    bool taken = host_folder_take(&self->folder, message, (mode_t)(line->mode & 0777), &info, NULL) == RP_OK;
    struct node_file *file = taken && line->last ? find_or_add(&self->mirror, line->name) : NULL;
    if (file)
        *file = (struct node_file){.has = info, .again_ns = file->again_ns, .seen = file->seen};
}

/* Asks a process to end, or kills it. */
static void on_end(void *context, const struct host_message *message)
{
    struct node_child *child = find_child(context, message->line->id);
    if (child && message->line->kill)
        process_kill(&child->process);
    else if (child)
        process_ask(&child->process, clock_ns());
}

/* The launcher asks for the whole file: its copy has another size. Heeded every few seconds, because two hosts may write files of
 * one name. */
static void on_again(void *context, const struct host_message *message)
{
    struct node *self = context;
    const char *name = message->line->name;
    struct node_file *file = name ? zhashx_lookup(self->mirror.files, name) : NULL;
    if (!file || (file->again_ns != 0 && clock_ns() - file->again_ns < AGAIN_NS))
        return;
    file->again_ns = clock_ns();
    file->whole = true;
}

/* ---- whether this machine reaches home ---- */

struct question {
    char address[256]; /* "host:port" */
    int to;            /* pipe for the answer */
};

/* Tries every address of the name, and answers. */
static void *answer(void *context)
{
    struct question *question = context;
    struct host_probe out = {.done = true};
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    const char *address = question->address;
    char host[256], port[16];
    bool split =
        sscanf(address, "[%255[^]]]:%15s", host, port) == 2 || sscanf(address, "%255[^:]:%15s", host, port) == 2;
    int rc = split ? getaddrinfo(host, port, &hints, &list) : EAI_NONAME, error = EHOSTUNREACH;
    for (const struct addrinfo *at = list; at && error != 0; at = at->ai_next) {
        int64_t start = clock_ns();
        int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_sec = REACH_S}, sizeof(struct timeval));
        error = fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
        error = error == EINPROGRESS ? ETIMEDOUT : error;
        out.ns = clock_ns() - start;
        if (fd >= 0)
            close(fd);
    }
    if (list)
        freeaddrinfo(list);
    out.ok = error == 0;
    if (rc != 0)
        snprintf(out.text, sizeof out.text, "%.120s is not known: %s", address, gai_strerror(rc));
    else if (error != 0)
        snprintf(out.text, sizeof out.text, "%.120s cannot be reached: %s", address, strerror(error));
    io_write(question->to, &out, sizeof out, IO_HERE);
    free(question);
    return NULL;
}

/* A name may take long to resolve: a thread of its own connects, and does not outlive the program. */
static void on_probe(void *context, const struct host_message *message)
{
    const struct node *self = context;
    const char *endpoint = message->line->endpoint;
    struct question *question = need_alloc(sizeof *question);
    pthread_t thread;
    endpoint = endpoint ? endpoint : "";
    question->to = self->answers[1];
    snprintf(question->address, sizeof question->address, "%s",
             endpoint + (strncmp(endpoint, "tcp://", 6) == 0 ? 6 : 0));
    if (pthread_create(&thread, NULL, answer, question) == 0)
        pthread_detach(thread);
    else
        answer(question);
}

static void on_bye(void *context, const struct host_message *message)
{
    (void)message;
    ((struct node *)context)->over = true;
}

/* "ping" only shows that the launcher is there: any line does. It hears of this side once a second (report_usage). */
static const struct host_line_handler node_handlers[] = {
    {"hello", on_hello}, {"file", node_on_file}, {"start", on_start}, {"end", on_end},
    {"again", on_again}, {"probe", on_probe},    {"bye", on_bye},     {0},
};

/* The guard kills everything, this process included, if it hears nothing for a lease: this process is stopped or stuck. */
static void show_life(struct node *self, int64_t now_ns)
{
    if (now_ns - self->alive_ns < self->lease_ns / ALIVE_SHARE)
        return;
    self->alive_ns = now_ns;
    guard_alive(&self->guard);
}

/* ---- the loop ---- */

static void poll_all(struct node *self)
{
    uint32_t n = STANDARD_POLLS;
    bool room = host_writer_room(&self->writer), empty = host_writer_empty(&self->writer);
    self->polls = need_resize(self->polls, n + self->n, sizeof *self->polls);
    self->polls[0] = (struct pollfd){.fd = self->reader.fd, .events = POLLIN};
    self->polls[1] = (struct pollfd){.fd = empty ? -1 : self->writer.fd, .events = POLLOUT};
    self->polls[2] = (struct pollfd){.fd = self->interrupts.fd, .events = POLLIN};
    self->polls[3] = (struct pollfd){.fd = self->answers[0], .events = POLLIN};
    for (uint32_t i = 0; room && i < self->n; i++)
        self->polls[n++] = (struct pollfd){.fd = self->children[i].output, .events = POLLIN};
    poll(self->polls, n, room && self->mirror.pass ? 0 : NODE_TURN_MS);
}

static void turn(struct node *self)
{
    struct host_message message;
    struct host_probe probe;
    poll_all(self);
    int64_t at = clock_ns();
    /* Before anything is read: a node agent that was stopped for longer has lost its launcher, whatever is in the pipe. */
    if (at - self->heard_ns > self->lease_ns) {
        self->over = true;
        return;
    }
    interrupts_wait(&self->interrupts, 0);
    self->over |= self->interrupts.asked > 0;
    if (guard_lost(&self->guard) && self->greeted)
        guard_lease(&self->guard, self->lease_ns);
    show_life(self, at);
    while (!self->over && host_reader_fill(&self->reader) > 0) {
        while (!self->over && host_reader_next(&self->reader, &message)) {
            self->heard_ns = clock_ns();
            show_life(self, self->heard_ns);
            host_line_dispatch(node_handlers, self, &message);
        }
    }
    self->over |= self->reader.ended || self->writer.broken;
    if (self->over || !self->greeted)
        return;
    while (read(self->answers[0], &probe, sizeof probe) == (ssize_t)sizeof probe)
        say(self, .type = "probed", .ok = probe.ok, .ns = probe.ns, .text = probe.text);
    tend_mirror(self, at);
    tend_children(self);
    report_usage(self, at);
    host_writer_flush(&self->writer);
}

/* ---- begin and end ---- */

static rp_status node_begin(struct node *self, int in, int out, rp_error *err)
{
    *self = (struct node){.lease_ns = LEASE_NS, .heard_ns = clock_ns(), .guard.pipe = -1, .interrupts.fd = -1};
    self->mirror.files = zhashx_new();
    zhashx_set_destructor(self->mirror.files, file_destroy);
    host_writer_init(&self->writer, out);
    host_reader_init(&self->reader, in, &self->noise);
    host_folder_init(&self->folder, "", "node");
    process_raise_files();
    RP_TRY(interrupts_init(&self->interrupts, err));
    RP_TRY(make_work(self, err));
    RP_TRY(guard_start(&self->guard, self->work, err)); /* keys and weights must not outlive this process */
    host_folder_init(&self->folder, self->work, "node");
    if (fcntl(in, F_SETFL, O_NONBLOCK) != 0 || fcntl(out, F_SETFL, O_NONBLOCK) != 0 ||
        pipe2(self->answers, O_CLOEXEC | O_NONBLOCK) != 0)
        return err_set(err, RP_IO, "the connection with replay-launch cannot be used: %s", strerror(errno));
    say(self, .type = "here");
    host_writer_flush(&self->writer);
    return RP_OK;
}

static void end(struct node *self)
{
    end_children(self);
    host_folder_drop(&self->folder);
    if (self->mirror.sending)
        host_file_close(&self->mirror.out);
    end_pass(&self->mirror);
    zhashx_destroy(&self->mirror.files);
    guard_finish(&self->guard); /* removes the work folder */
    host_reader_fini(&self->reader);
    host_writer_fini(&self->writer);
    interrupts_fini(&self->interrupts);
    free(self->polls);
}

rp_status node_run(int in, int out, rp_error *err)
{
    struct node self;
    rp_status status = node_begin(&self, in, out, err);
    while (status == RP_OK && !self.over)
        turn(&self);
    end(&self);
    return status;
}
