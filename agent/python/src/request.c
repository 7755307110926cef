/* Questions to the broker with one answer: Client.request. */
#include "agent/python/src/core.h"

#include <stdlib.h>
#include <string.h>

struct request {
    const struct kind *kind;
    struct conn *conn;
    int64_t timeout_ms;
    /* What is asked: which of these are used depends on the kind. */
    char *text;
    int64_t number;
    uint32_t count;
    char *data;
    uint64_t bytes;
    uint64_t *keys;
    double *values;
    uint64_t n_keys, n_values;
    /* The answer. */
    rp_status status;
    rp_error err;
    char *json;
    int64_t value;
    uint64_t version;
    rp_params *params;
    rp_batch *batch;
    rp_change change;
    rp_info *info;
};

struct kind {
    const char *name;
    rp_status (*call)(struct request *self);
    PyObject *(*answer)(struct request *self);
};

/* ---- calls, without the GIL */

/* Turns the answer, or an object of it, into JSON text. */
static rp_status give_json(struct request *self, rp_status status, const rp_info *info)
{
    return status == RP_OK ? rp_info_json(info, &self->json, &self->err) : status;
}

static rp_status call_info(struct request *self)
{
    rp_status status = rp_admin_info(self->conn->client, self->text, (uint32_t)self->number, self->timeout_ms,
                                     &self->info, &self->err);
    return give_json(self, status, self->info);
}

static rp_status call_why(struct request *self)
{
    rp_status status = rp_admin_why(self->conn->client, self->timeout_ms, &self->info, &self->err);
    return give_json(self, status, self->info);
}

static rp_status call_list(struct request *self)
{
    rp_status status = rp_admin_list(self->conn->client, self->text, (uint64_t)self->number, self->count,
                                     self->timeout_ms, &self->info, &self->err);
    return give_json(self, status, self->info);
}

static rp_status call_reset(struct request *self)
{
    rp_status status = rp_admin_reset(self->conn->client, self->text, self->timeout_ms, &self->info, &self->err);
    return give_json(self, status, self->info);
}

/* Without a change: only asks for the limiter. */
static rp_status call_limiter(struct request *self)
{
    rp_limiter_change change = {.struct_size = sizeof change, .set = (uint32_t)self->number};
    if (!change.set) {
        rp_status status = rp_admin_info(self->conn->client, self->text, 0, self->timeout_ms, &self->info, &self->err);
        return give_json(self, status, rp_info_at(self->info, "tables.0.limiter", 0));
    }
    if (self->n_values == 5) {
        change.samples_per_insert = self->values[0];
        change.min_size = self->values[1];
        change.min_diff = self->values[2];
        change.max_diff = self->values[3];
        change.error_buffer = self->values[4];
    }
    rp_status status =
        rp_admin_set_limiter(self->conn->client, self->text, &change, self->timeout_ms, &self->info, &self->err);
    return give_json(self, status, self->info);
}

static rp_status call_fetch(struct request *self)
{
    return rp_admin_fetch(self->conn->client, self->text, self->keys, (uint32_t)self->n_keys, self->timeout_ms,
                          &self->batch, &self->err);
}

static rp_status call_checkpoint(struct request *self)
{
    return rp_admin_checkpoint(self->conn->client, self->timeout_ms, &self->info, &self->err);
}

static rp_status call_put(struct request *self)
{
    return rp_params_put(self->conn->client, self->text, self->data, self->bytes, self->timeout_ms, &self->version,
                         &self->err);
}

static rp_status call_get(struct request *self)
{
    return rp_params_get(self->conn->client, self->text, (uint64_t)self->number, self->timeout_ms, &self->params,
                         &self->err);
}

static rp_status call_add(struct request *self)
{
    return rp_counter_add(self->conn->client, self->text, self->number, self->timeout_ms, &self->value, &self->err);
}

static rp_status call_read(struct request *self)
{
    return rp_counter_read(self->conn->client, self->text, self->timeout_ms, &self->value, &self->err);
}

static rp_status call_update(struct request *self)
{
    return rp_priorities_update(self->conn->client, self->text, self->keys, self->values, self->n_keys,
                                self->timeout_ms, &self->change, &self->err);
}

static rp_status call_delete(struct request *self)
{
    return rp_items_delete(self->conn->client, self->text, self->keys, self->n_keys, self->timeout_ms, &self->change,
                           &self->err);
}

/* ---- answers, as Python objects */

static PyObject *answer_json(struct request *self)
{
    return PyUnicode_FromString(self->json);
}

static PyObject *answer_batch(struct request *self)
{
    rp_batch *batch = self->batch;
    self->batch = NULL;
    return batch_wrap(batch);
}

static PyObject *answer_checkpoint(struct request *self)
{
    const rp_info *info = self->info;
    return Py_BuildValue("(KKKKK)", rp_info_u64(info, "number"), rp_info_u64(info, "based_on"),
                         rp_info_u64(info, "items"), rp_info_u64(info, "written_bytes"), rp_info_u64(info, "took_ns"));
}

static PyObject *answer_version(struct request *self)
{
    return PyLong_FromUnsignedLongLong(self->version);
}

static PyObject *answer_param(struct request *self)
{
    const rp_param *slot = rp_params_slot(self->params);
    return Py_BuildValue("(Ky#K)", slot->version, slot->data ? (const char *)slot->data : "", (Py_ssize_t)slot->bytes,
                         slot->age_ns);
}

static PyObject *answer_value(struct request *self)
{
    return PyLong_FromLongLong(self->value);
}

static PyObject *answer_change(struct request *self)
{
    return Py_BuildValue("(KKK)", self->change.applied, self->change.missing, self->change.refused);
}

static const struct kind kinds[] = {
    {"info", call_info, answer_json},
    {"why", call_why, answer_json},
    {"list", call_list, answer_json},
    {"reset", call_reset, answer_json},
    {"limiter", call_limiter, answer_json},
    {"fetch", call_fetch, answer_batch},
    {"put", call_put, answer_version},
    {"get", call_get, answer_param},
    {"add", call_add, answer_value},
    {"read", call_read, answer_value},
    {"update", call_update, answer_change},
    {"delete", call_delete, answer_change},
    {"checkpoint", call_checkpoint, answer_checkpoint},
};

/* ---- a request's life */

static void request_drop(struct request *self)
{
    rp_string_free(&self->json);
    rp_info_free(&self->info);
    rp_params_release(&self->params);
    rp_batch_release(&self->batch);
    conn_unref(self->conn);
    free(self->text);
    free(self->data);
    free(self->keys);
    free(self->values);
    free(self);
}

static bool copy_bytes(PyObject *object, const char *what, size_t size, void **out, uint64_t *n)
{
    Py_buffer view;
    if (object == Py_None)
        return true;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return false;
    *n = (uint64_t)view.len / size;
    *out = malloc(view.len ? (size_t)view.len : 1);
    if (*out)
        memcpy(*out, view.buf, (size_t)view.len);
    else
        PyErr_Format(PyExc_MemoryError, "no memory for %zd bytes of %s", view.len, what);
    PyBuffer_Release(&view);
    return *out != NULL;
}

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    PyErr_Format(PyExc_ValueError, "there is no request '%s'", name);
    return NULL;
}

static bool read_arguments(struct request *self, PyObject *args)
{
    const char *kind, *text = NULL;
    PyObject *seconds, *data = Py_None, *keys = Py_None, *values = Py_None;
    long long number = 0;
    if (!PyArg_ParseTuple(args, "sO|zLO&OOO", &kind, &seconds, &text, &number, core_u32, &self->count, &data, &keys,
                          &values))
        return false;
    self->number = number;
    if (!core_timeout(seconds, &self->timeout_ms) || !(self->kind = find_kind(kind)))
        return false;
    if (text && !(self->text = strdup(text))) {
        PyErr_NoMemory();
        return false;
    }
    if (!copy_bytes(data, "data", 1, (void **)&self->data, &self->bytes) ||
        !copy_bytes(keys, "keys", sizeof *self->keys, (void **)&self->keys, &self->n_keys) ||
        !copy_bytes(values, "values", sizeof *self->values, (void **)&self->values, &self->n_values))
        return false;
    if (self->kind->call != call_update || self->n_keys == self->n_values)
        return true;
    PyErr_Format(PyExc_ValueError, "there are %llu keys and %llu priorities: one priority per key is needed",
                 (unsigned long long)self->n_keys, (unsigned long long)self->n_values);
    return false;
}

PyObject *request_call(PyObject *client, PyObject *args)
{
    struct conn *conn = client_share(client);
    struct request *self = conn ? calloc(1, sizeof *self) : NULL;
    if (!self) {
        conn_drop(&conn);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    self->conn = conn;
    PyObject *out = NULL;
    if (read_arguments(self, args)) {
        struct watch watch;
        watch_begin(&watch, NULL);
        self->status = self->kind->call(self);
        if (watch_end(&watch))
            out = self->status == RP_OK ? self->kind->answer(self) : core_raise(self->status, self->err.text);
    }
    Py_BEGIN_ALLOW_THREADS;
    request_drop(self);
    Py_END_ALLOW_THREADS;
    return out;
}
