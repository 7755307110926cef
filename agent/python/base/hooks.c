/* Exceptions, and small readers of arguments. */
#include "agent/python/base/base.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FOREVER_S 1e9 /* a deadline this far away means "none" */

static PyObject *errors;  /* a tuple: an exception class per status */
static PyObject *convert; /* convert(value, name, dtype, shape) -> array */

PyObject *core_hook(const char *name)
{
    PyObject *hook = strcmp(name, "errors") == 0 ? errors : convert;
    if (!hook)
        PyErr_SetString(PyExc_RuntimeError, "import replaybus, not its extension");
    return Py_XNewRef(hook);
}

PyObject *core_raise(int32_t status, const char *text)
{
    PyObject *classes = core_hook("errors");
    if (!classes)
        return NULL;
    Py_ssize_t i = status > 0 && status < PyTuple_Size(classes) ? status : RP_INTERNAL;
    PyObject *type = PyTuple_GetItem(classes, i);
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    PyObject *error = type && message ? PyObject_CallFunction(type, "(O)", message) : NULL;
    if (error)
        PyErr_SetObject(type, error);
    Py_XDECREF(error);
    Py_XDECREF(message);
    Py_DECREF(classes);
    return NULL;
}

bool core_timeout(PyObject *seconds, int64_t *out)
{
    *out = -1;
    if (seconds == Py_None)
        return true;
    double value = PyFloat_AsDouble(seconds);
    if (PyErr_Occurred())
        return false;
    if (!(value >= 0)) {
        PyErr_Format(PyExc_ValueError, "a timeout is None or at least 0 seconds, not %R", seconds);
        return false;
    }
    if (value < FOREVER_S)
        *out = (int64_t)ceil(value * 1e3);
    return true;
}

bool core_count(long long count, const char *what, long long most)
{
    if (count >= 0 && count <= most)
        return true;
    char text[128];
    snprintf(text, sizeof text, "%s is %lld: it must be 0 to %lld", what, count, most);
    core_raise(RP_INVALID_ARGUMENT, text);
    return false;
}

int core_u32(PyObject *value, void *out)
{
    PyObject *index = PyNumber_Index(value);
    int overflow = 0;
    long long count = index ? PyLong_AsLongLongAndOverflow(index, &overflow) : 0;
    bool ok = index && (overflow ? core_count(overflow > 0 ? LLONG_MAX : LLONG_MIN, "a count", UINT32_MAX)
                                 : core_count(count, "a count", UINT32_MAX));
    Py_XDECREF(index);
    *(uint32_t *)out = (uint32_t)count;
    return ok;
}

const char *core_text(PyObject *text, const char *what)
{
    if (!text || !PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "%s is a str", what);
        return NULL;
    }
    return PyUnicode_AsUTF8AndSize(text, NULL);
}

bool core_add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **out)
{
    *out = (PyTypeObject *)PyType_FromSpec(spec);
    return *out && PyModule_AddObjectRef(module, name, (PyObject *)*out) == 0;
}

PyObject *core_setup(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *classes, *function;
    if (!PyArg_ParseTuple(args, "O!O", &PyTuple_Type, &classes, &function))
        return NULL;
    Py_CLEAR(errors);
    Py_CLEAR(convert);
    errors = Py_NewRef(classes);
    convert = Py_NewRef(function);
    return Py_NewRef(Py_None);
}
