#include "tests/support/nomem.h"

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <zmq.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *block);
int __real_vasprintf(char **out, const char *format, va_list args);
void *__real_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
void *__real_reserve_map(size_t bytes) __attribute__((weak)); /* this and the next: of the broker alone */
void *__real_reserve_map_dense(size_t bytes) __attribute__((weak));
int __real_zmq_msg_init_size(zmq_msg_t *message, size_t size);
int __real_zmq_msg_init_data(zmq_msg_t *message, void *data, size_t size, zmq_free_fn *done, void *hint);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *block);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t most);
int __wrap_vasprintf(char **out, const char *format, va_list args);
int __wrap_asprintf(char **out, const char *format, ...);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset);
void *__wrap_reserve_map(size_t bytes);
void *__wrap_reserve_map_dense(size_t bytes);
void *__wrap_need_alloc(size_t size);
void *__wrap_need_resize(void *array, size_t n, size_t size);
char *__wrap_need_text(const char *text);
char *__wrap_need_print(const char *format, ...);
int __wrap_zmq_msg_init_size(zmq_msg_t *message, size_t size);
int __wrap_zmq_msg_init_data(zmq_msg_t *message, void *data, size_t size, zmq_free_fn *done, void *hint);

#define PLACES (1u << 20)
#define FRAMES 16
/* libzmq keeps so much within the message itself. */
#define INLINE_BYTES 33u

struct held {
    void *block;
    void *site;
    uint64_t order;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held held[PLACES]; /* open addressing; block NULL: free */
static _Atomic uint64_t n_held, order, marked;
static struct {
    _Atomic uint64_t n, count;
    _Atomic enum nomem_mode mode;
    atomic_bool armed, failed, others;
    pthread_t owner;
    void *frames[FRAMES];
    int n_frames;
} plan;
static _Thread_local int inside;
static _Thread_local bool exempt;

static uint32_t place_of(const void *block)
{
    return (uint32_t)(((uintptr_t)block >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 40) & (PLACES - 1);
}

static uint32_t find(const void *block)
{
    uint32_t at = place_of(block);
    while (held[at].block && held[at].block != block)
        at = (at + 1) & (PLACES - 1);
    return at;
}

static void *keep(void *block, void *site)
{
    if (!block)
        return NULL;
    pthread_mutex_lock(&lock);
    if (n_held > PLACES / 2)
        abort();
    held[find(block)] = (struct held){block, site, order++};
    n_held++;
    pthread_mutex_unlock(&lock);
    return block;
}

static void forget(void *block)
{
    pthread_mutex_lock(&lock);
    uint32_t hole = find(block), at = hole;
    if (held[hole].block) {
        n_held--;
        for (;;) {
            at = (at + 1) & (PLACES - 1);
            if (!held[at].block)
                break;
            uint32_t home = place_of(held[at].block);
            if (((at - home) & (PLACES - 1)) >= ((at - hole) & (PLACES - 1))) {
                held[hole] = held[at];
                hole = at;
            }
        }
        held[hole].block = NULL;
    }
    pthread_mutex_unlock(&lock);
}

/* True: this allocation fails. */
static bool fails(void)
{
    if (!plan.armed || exempt || (inside == 0 && (!plan.others || pthread_equal(plan.owner, pthread_self()))))
        return false;
    uint64_t count = atomic_fetch_add(&plan.count, 1) + 1;
    if (!plan.n || (plan.mode == NOMEM_ONCE ? count != plan.n : count < plan.n))
        return false;
    if (!atomic_exchange(&plan.failed, true))
        plan.n_frames = backtrace(plan.frames, FRAMES);
    errno = ENOMEM;
    return true;
}

/* ---- what tests call ---- */

void nomem_arm(uint64_t n, enum nomem_mode mode)
{
    static bool loaded;
    void *frame;
    if (!loaded)
        loaded = backtrace(&frame, 1) > 0; /* its library is loaded the first time, which allocates */
    plan.n = n;
    plan.mode = mode;
    plan.count = 0;
    plan.failed = false;
    plan.armed = true;
}

bool nomem_disarm(void)
{
    plan.armed = false;
    return plan.failed;
}

bool nomem_has_failed(void)
{
    return plan.failed;
}

uint64_t nomem_count(void)
{
    return plan.count;
}

void nomem_enter(void)
{
    inside++;
}

void nomem_leave(void)
{
    inside--;
}

void nomem_others(bool on)
{
    plan.owner = pthread_self();
    plan.others = on;
}

uint64_t nomem_held(void)
{
    return n_held;
}

void nomem_mark(void)
{
    marked = order;
}

void nomem_print_failed(const char *what, uint64_t n)
{
    fprintf(stderr, "%s: allocation %llu failed here:\n", what, (unsigned long long)n);
    fflush(stderr);
    backtrace_symbols_fd(plan.frames, plan.n_frames, STDERR_FILENO);
}

void nomem_print_held(uint32_t most)
{
    for (uint32_t i = 0; i < PLACES && most; i++)
        if (held[i].block && held[i].order >= marked) {
            fputs("still held, allocated here: ", stderr);
            fflush(stderr);
            backtrace_symbols_fd(&held[i].site, 1, STDERR_FILENO);
            most--;
        }
}

/* ---- what our code calls ---- */

#define SITE __builtin_return_address(0)

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : keep(__real_malloc(size), SITE);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : keep(__real_calloc(n, size), SITE);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : keep(__real_aligned_alloc(alignment, size), SITE);
}

void *__wrap_realloc(void *old, size_t size)
{
    if (fails())
        return NULL;
    if (old)
        forget(old);
    return keep(__real_realloc(old, size), SITE);
}

void __wrap_free(void *block)
{
    if (block)
        forget(block);
    __real_free(block);
}

static char *copy_text(const char *text, size_t size, void *site)
{
    char *copy = fails() ? NULL : keep(__real_malloc(size + 1), site);
    if (copy) {
        memcpy(copy, text, size);
        copy[size] = '\0';
    }
    return copy;
}

char *__wrap_strdup(const char *text)
{
    return copy_text(text, strlen(text), SITE);
}

char *__wrap_strndup(const char *text, size_t most)
{
    return copy_text(text, strnlen(text, most), SITE);
}

int __wrap_vasprintf(char **out, const char *format, va_list args)
{
    char *text = NULL;
    int size = fails() ? -1 : __real_vasprintf(&text, format, args);
    if (size >= 0)
        *out = keep(text, SITE);
    return size;
}

int __wrap_asprintf(char **out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int size = __wrap_vasprintf(out, format, args);
    va_end(args);
    return size;
}

/* need_*: never fail here, because the process would end. */

void *__wrap_need_alloc(size_t size)
{
    return keep(__real_calloc(1, size ? size : 1), SITE);
}

void *__wrap_need_resize(void *array, size_t n, size_t size)
{
    if (array)
        forget(array);
    return keep(__real_realloc(array, n && size ? n * size : 1), SITE);
}

char *__wrap_need_text(const char *text)
{
    size_t size = strlen(text) + 1;
    return memcpy(keep(__real_malloc(size), SITE), text, size);
}

char *__wrap_need_print(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int size = __real_vasprintf(&text, format, args);
    va_end(args);
    return size < 0 ? NULL : keep(text, SITE);
}

/* These end the process, too. */
static void *map_exempt(void *(*map)(size_t bytes), size_t bytes)
{
    exempt = true;
    void *memory = map(bytes);
    exempt = false;
    return memory;
}

void *__wrap_reserve_map(size_t bytes)
{
    return map_exempt(__real_reserve_map, bytes);
}

void *__wrap_reserve_map_dense(size_t bytes)
{
    return map_exempt(__real_reserve_map_dense, bytes);
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
    if (fails())
        return MAP_FAILED;
    return __real_mmap(at, size, protection, flags, file, offset);
}

int __wrap_zmq_msg_init_size(zmq_msg_t *message, size_t size)
{
    return size > INLINE_BYTES && fails() ? -1 : __real_zmq_msg_init_size(message, size);
}

int __wrap_zmq_msg_init_data(zmq_msg_t *message, void *data, size_t size, zmq_free_fn *done, void *hint)
{
    return fails() ? -1 : __real_zmq_msg_init_data(message, data, size, done, hint);
}
