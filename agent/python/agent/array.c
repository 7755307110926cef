/* Numpy arrays in and out, by the buffer protocol: the extension needs numpy when it runs, not when it is built. */
#include "agent/python/agent/agent.h"

static const char *dtype_name(char kind)
{
    switch (kind) {
    case 'f':
        return "float32";
    case 'd':
        return "float64";
    case 'q':
        return "int64";
    case '?':
        return "bool";
    default:
        return "uint8";
    }
}

/* ---- forms */

struct array_form array_form_vector(const char *name, char kind, uint32_t n)
{
    return (struct array_form){.name = name, .kind = kind, .rank = 1, .shape = {n}};
}

struct array_form array_form_observation(const char *name, const rp_env_spec *spec, uint32_t n)
{
    struct array_form form = {.name = name, .kind = spec->observation_dtype == RP_DTYPE_FLOAT32 ? 'f' : 'B'};
    if (n > 0)
        form.shape[form.rank++] = n;
    for (uint32_t i = 0; i < spec->observation_rank; i++)
        form.shape[form.rank++] = spec->observation_shape[i];
    return form;
}

struct array_form array_form_action(const char *name, const rp_env_spec *spec, uint32_t n)
{
    struct array_form form = {.name = name, .kind = spec->n_actions ? 'q' : 'f'};
    if (n > 0)
        form.shape[form.rank++] = n;
    if (spec->n_actions == 0)
        form.shape[form.rank++] = spec->action_size;
    return form;
}

static PyObject *shape_tuple(const struct array_form *form)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)form->rank);
    for (uint32_t i = 0; shape && i < form->rank; i++) {
        PyObject *size = PyLong_FromUnsignedLong(form->shape[i]);
        if (!size)
            Py_CLEAR(shape);
        else if (PyTuple_SetItem(shape, (Py_ssize_t)i, size) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

void array_form_fini(struct array_form *form)
{
    Py_CLEAR(form->args);
}

/* ---- in */

static bool is_kind(const Py_buffer *view, char kind)
{
    const char *format = view->format ? view->format : "B";
    if (*format == '<' || *format == '=' || *format == '@' || *format == '|')
        format++;
    char found = *format == 'l' && view->itemsize == 8 ? 'q' : *format;
    return found == kind && format[1] == 0;
}

static bool fits(const Py_buffer *view, const struct array_form *form)
{
    if (view->ndim != (int)form->rank || !is_kind(view, form->kind))
        return false;
    for (uint32_t i = 0; i < form->rank; i++)
        if (view->shape[i] != (Py_ssize_t)form->shape[i])
            return false;
    return true;
}

static bool take_as_is(struct array *self, PyObject *value, const struct array_form *form)
{
    if (PyObject_GetBuffer(value, &self->view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) {
        PyErr_Clear();
        self->view.obj = NULL;
        return false;
    }
    self->data = self->view.buf;
    if (fits(&self->view, form))
        return true;
    array_release(self);
    return false;
}

bool array_take(struct array *self, PyObject *value, const struct array_form *form)
{
    if (take_as_is(self, value, form))
        return true;
    PyObject *convert = core_hook("convert"), *shape = convert ? shape_tuple(form) : NULL;
    PyObject *array =
        shape ? PyObject_CallFunction(convert, "OssO", value, form->name, dtype_name(form->kind), shape) : NULL;
    bool ok = array && take_as_is(self, array, form);
    if (array && !ok)
        core_raise(RP_INTERNAL, "a converted array has another form");
    Py_XDECREF(array);
    Py_XDECREF(shape);
    Py_XDECREF(convert);
    return ok;
}

/* ---- out */

static PyObject *numpy_attribute(const char *name)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *attribute = numpy ? PyObject_GetAttrString(numpy, name) : NULL;
    Py_XDECREF(numpy);
    return attribute;
}

/* The arguments (shape, dtype) of numpy.empty. */
static PyObject *make_args(const struct array_form *form)
{
    PyObject *dtype = numpy_attribute("dtype"), *shape = shape_tuple(form);
    PyObject *type = dtype ? PyObject_CallFunction(dtype, "s", dtype_name(form->kind)) : NULL;
    PyObject *args = type && shape ? PyTuple_Pack(2, shape, type) : NULL;
    Py_XDECREF(type);
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return args;
}

PyObject *array_new(struct array_form *form, struct array *out)
{
    static PyObject *empty;
    if (!empty && !(empty = numpy_attribute("empty")))
        return NULL;
    if (!form->args && !(form->args = make_args(form)))
        return NULL;
    PyObject *array = PyObject_Call(empty, form->args, NULL);
    if (!array)
        return NULL;
    if (PyObject_GetBuffer(array, &out->view, PyBUF_WRITABLE) < 0) {
        out->view.obj = NULL;
        Py_DECREF(array);
        return NULL;
    }
    out->data = out->view.buf;
    return array;
}

void array_release(struct array *self)
{
    if (self->view.obj)
        PyBuffer_Release(&self->view);
    self->view.obj = NULL;
}
