/* Blocks of named tensors (proto/PROTOCOL.md, 21) for replaybus.weights. */
#include "agent/learn/weights.h"

#include <stdlib.h>
#include <string.h>

#include "agent/python/src/core.h"

/* The arrays of one call. */
struct arrays {
    struct tensor *tensors;
    Py_buffer *views;
    uint32_t n;
};

static void arrays_fini(struct arrays *self)
{
    for (uint32_t i = 0; i < self->n; i++)
        PyBuffer_Release(&self->views[i]);
    free(self->tensors);
    free(self->views);
}

static bool name_is_allowed(const char *name, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (name[i] < 0x21 || name[i] > 0x7e)
            return false;
    return length > 0 && length <= WEIGHTS_MAX_NAME;
}

static bool take_name(struct tensor *tensor, PyObject *name)
{
    Py_ssize_t length = 0;
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &length) : NULL;
    if (!text || !name_is_allowed(text, (size_t)length)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "the name of a tensor is 1 to %d visible ASCII characters, not %R",
                     (int)WEIGHTS_MAX_NAME, name);
        return false;
    }
    memcpy(tensor->name, text, (size_t)length + 1);
    return true;
}

/* Takes an array in C order. False with an exception set. */
static bool take_array(struct arrays *self, PyObject *name, PyObject *array)
{
    struct tensor *tensor = &self->tensors[self->n];
    Py_buffer *view = &self->views[self->n];
    if (!take_name(tensor, name) || PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0)
        return false;
    self->n++;
    tensor->dtype = column_dtype(view->format, view->itemsize);
    tensor->rank = (uint32_t)view->ndim;
    tensor->data = view->buf;
    if (tensor->dtype == 0 || tensor->rank > RP_MAX_RANK) {
        PyErr_Format(PyExc_ValueError,
                     "tensor '%s' has elements of format '%s' in %d dimensions: weights have numbers in at most %d",
                     tensor->name, view->format, view->ndim, (int)RP_MAX_RANK);
        return false;
    }
    for (int i = 0; i < view->ndim; i++)
        tensor->shape[i] = (uint64_t)view->shape[i];
    return true;
}

static bool arrays_take(struct arrays *self, PyObject *tensors)
{
    Py_ssize_t n = PyDict_Size(tensors), at = 0;
    PyObject *name, *array;
    if (n > (Py_ssize_t)WEIGHTS_MAX_TENSORS) {
        PyErr_Format(PyExc_ValueError, "%zd tensors are too many: a block has at most %d", n, (int)WEIGHTS_MAX_TENSORS);
        return false;
    }
    self->tensors = core_alloc((size_t)n, sizeof *self->tensors);
    self->views = core_alloc((size_t)n, sizeof *self->views);
    if (!self->tensors || !self->views)
        return false;
    while (PyDict_Next(tensors, &at, &name, &array))
        if (!take_array(self, name, array))
            return false;
    return true;
}

PyObject *weights_from_arrays(PyObject *module, PyObject *tensors)
{
    (void)module;
    struct arrays arrays = {0};
    PyObject *out = NULL;
    if (!PyDict_Check(tensors))
        return PyErr_Format(PyExc_TypeError, "weights are a dict of names and arrays");
    PyObject *own = PyDict_Copy(tensors); /* reading an array may run code that changes the caller's */
    if (own && arrays_take(&arrays, own)) {
        out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)weights_size(arrays.tensors, arrays.n));
        if (out)
            weights_encode(arrays.tensors, arrays.n, PyBytes_AsString(out));
    }
    Py_XDECREF(own);
    arrays_fini(&arrays);
    return out;
}

static PyObject *entry_of(const struct tensor *tensor, const void *block)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)tensor->rank);
    for (uint32_t i = 0; shape && i < tensor->rank; i++)
        core_set(&shape, i, PyLong_FromUnsignedLongLong(tensor->shape[i]));
    return Py_BuildValue("(ssNn)", tensor->name, dtype_name(tensor->dtype), shape,
                         (Py_ssize_t)((const char *)tensor->data - (const char *)block));
}

static PyObject *list_of(const Py_buffer *view, struct tensor *tensors, uint32_t n)
{
    rp_error err;
    rp_status status = weights_list(view->buf, (size_t)view->len, tensors, n, &n, &err);
    if (status != RP_OK)
        return core_raise(status, err.text);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < n; i++)
        core_append(&list, entry_of(&tensors[i], view->buf));
    return list;
}

PyObject *weights_entries(PyObject *module, PyObject *block)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(block, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    struct tensor *tensors = core_alloc(WEIGHTS_MAX_TENSORS, sizeof *tensors);
    PyObject *list = tensors ? list_of(&view, tensors, WEIGHTS_MAX_TENSORS) : NULL;
    free(tensors);
    PyBuffer_Release(&view);
    return list;
}

PyObject *weights_half(PyObject *module, PyObject *block)
{
    (void)module;
    Py_buffer view;
    uint8_t *half = NULL;
    size_t size = 0;
    rp_error err;
    rp_status status;
    if (PyObject_GetBuffer(block, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = weights_bf16(view.buf, (size_t)view.len, &half, &size, &err);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    PyObject *out = status == RP_OK ? PyBytes_FromStringAndSize((const char *)half, (Py_ssize_t)size)
                                    : core_raise(status, err.text);
    free(half);
    return out;
}
