/* Pool: memory of batches whose blocks Python code knows, to pin them for a device or to choose where they are.
 *
 * The library asks for blocks on its own threads, which never take the GIL. A block stays in the pool until the pool ends: the
 * next batches use it again. */
#include "agent/python/src/core.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define LARGE_PAGE ((size_t)2 << 20)

struct block {
    struct block *next; /* never changes */
    void *data;
    size_t bytes;
    Py_buffer view; /* of a buffer of the user, until the object is gone */
    bool own, used;
};

struct pool {
    pthread_mutex_t lock;
    /* Of the object, and of each block in use: the library may free one after the sampler was destroyed. */
    uint32_t refs;
    struct block *blocks; /* the newest first */
};

typedef struct pool_object {
    PyObject_HEAD struct pool *pool;
    uint32_t forks;
} pool_object;

static PyTypeObject *pool_type;

/* Gives up a reference. The caller has the lock, which is released. */
static void pool_unref(struct pool *self)
{
    bool last = --self->refs == 0;
    pthread_mutex_unlock(&self->lock);
    while (last && self->blocks) {
        struct block *block = self->blocks;
        self->blocks = block->next;
        if (block->own)
            free(block->data);
        free(block);
    }
    if (last) {
        pthread_mutex_destroy(&self->lock);
        free(self);
    }
}

/* ---- the library's side: any thread, without the GIL */

/* Adds a block of whole pages: one that is pinned shares no page with other memory. NULL: there is no memory. */
static struct block *block_add(struct pool *pool, size_t bytes)
{
    struct block *self = calloc(1, sizeof *self);
    size_t unit = bytes < LARGE_PAGE ? PAGE : LARGE_PAGE;
    size_t whole = (bytes + unit - 1) & ~(unit - 1);
    void *data = aligned_alloc(unit, whole);
    if (!self || !data) {
        free(self);
        free(data);
        return NULL;
    }
    if (unit == LARGE_PAGE)
        (void)madvise(data, whole, MADV_HUGEPAGE);
    *self = (struct block){.next = pool->blocks, .data = data, .bytes = bytes, .own = true};
    pool->blocks = self;
    return self;
}

/* Takes a free block that is large enough. The oldest: buffers of the user come before blocks of the pool's own. */
static void *pool_alloc(void *ctx, size_t bytes)
{
    struct pool *self = ctx;
    struct block *found = NULL;
    pthread_mutex_lock(&self->lock);
    for (struct block *block = self->blocks; block; block = block->next)
        found = !block->used && block->bytes >= bytes ? block : found;
    found = found ? found : block_add(self, bytes);
    if (found) {
        found->used = true;
        self->refs++;
    }
    pthread_mutex_unlock(&self->lock);
    return found ? found->data : NULL;
}

static void pool_free(void *ctx, void *memory, size_t bytes)
{
    (void)bytes;
    struct pool *self = ctx;
    pthread_mutex_lock(&self->lock);
    struct block *block = self->blocks;
    while (block->data != memory)
        block = block->next;
    block->used = false;
    pool_unref(self);
}

bool pool_memory(PyObject *object, rp_memory *out)
{
    if (object == Py_None)
        return true;
    if (!PyObject_TypeCheck(object, pool_type)) {
        PyErr_SetString(PyExc_TypeError, "the memory of a sampler is a Pool");
        return false;
    }
    *out = (rp_memory){.alloc = pool_alloc, .free = pool_free, .ctx = ((pool_object *)object)->pool};
    return true;
}

/* ---- the object */

static void pool_dealloc(PyObject *object)
{
    pool_object *self = (pool_object *)object;
    if (self->pool && self->forks == forks_count()) { /* in a child, a thread of the parent may hold the lock */
        for (struct block *block = self->pool->blocks; block; block = block->next)
            PyBuffer_Release(&block->view);
        pthread_mutex_lock(&self->pool->lock);
        pool_unref(self->pool);
    }
    core_free(object);
}

static bool overlaps(const struct block *a, const struct block *b)
{
    const char *first = a->data, *second = b->data;
    return first < second + b->bytes && second < first + a->bytes;
}

/* Adds a buffer of the user. False with an exception set. */
static bool add_buffer(struct pool *self, PyObject *buffer)
{
    struct block *block = core_alloc(1, sizeof *block);
    if (!block || PyObject_GetBuffer(buffer, &block->view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0) {
        free(block);
        return false;
    }
    block->data = block->view.buf;
    block->bytes = (size_t)block->view.len;
    block->next = self->blocks;
    self->blocks = block;
    const struct block *other = block->next;
    while (other && !overlaps(block, other))
        other = other->next;
    const char *wrong = other                              ? "overlaps another one"
                        : (uintptr_t)block->data % 64 != 0 ? "begins at an address that is no multiple of 64"
                                                           : NULL;
    if (wrong)
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes for batches %s", block->view.len, wrong);
    return !wrong;
}

static PyObject *pool_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffers", NULL};
    PyObject *buffers;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!", names, &PyTuple_Type, &buffers))
        return NULL;
    pool_object *self = (pool_object *)PyType_GenericAlloc(type, 0);
    struct pool *pool = core_alloc(1, sizeof *pool);
    if (!self || !pool) {
        free(pool);
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pool->refs = 1;
    self->pool = pool;
    self->forks = forks_count();
    for (Py_ssize_t i = 0; self && i < PyTuple_Size(buffers); i++)
        if (!add_buffer(pool, PyTuple_GetItem(buffers, i)))
            Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *pool_blocks(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct pool *self = ((pool_object *)object)->pool;
    PyObject *out = PyList_New(0);
    pthread_mutex_lock(&self->lock);
    struct block *block = self->blocks;
    pthread_mutex_unlock(&self->lock);
    for (; block; block = block->next)
        core_append(
            &out, Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)block->data, (unsigned long long)block->bytes));
    return out;
}

static PyMethodDef methods[] = {
    {"blocks", pool_blocks, METH_NOARGS, "[(address, bytes)] of all blocks, the newest first. None leaves the pool."},
    {NULL, NULL, 0, NULL},
};

const struct core_type pool_core = {
    .name = "replaybus._core.Pool",
    .doc = "Pool(buffers): memory of batches, in these buffers and in blocks of its own.",
    .size = sizeof(pool_object),
    .make = pool_make,
    .dealloc = pool_dealloc,
    .methods = methods,
    .is_base = true,
    .out = &pool_type,
};
