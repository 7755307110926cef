/* Exceptions, small readers of arguments, types. */
#include "agent/python/base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOREVER_S 1e9 /* a deadline this far away means "none" */

static PyObject *errors;  /* a tuple: an exception class per status */
static PyObject *convert; /* convert(value, name, dtype, shape) -> array */

static bool is_set_up(void)
{
    if (!errors)
        PyErr_SetString(PyExc_RuntimeError, "import replaybus, not its extension");
    return errors;
}

PyObject *core_convert(PyObject *value, const char *name, const char *dtype, PyObject *shape)
{
    return is_set_up() ? PyObject_CallFunction(convert, "OssO", value, name, dtype, shape) : NULL;
}

PyObject *core_raise(int32_t status, const char *text)
{
    if (!is_set_up())
        return NULL;
    PyObject *classes = Py_NewRef(errors);
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
    if (!(value >= 0)) {
        PyErr_Format(PyErr_Occurred() ? PyExc_TypeError : PyExc_ValueError,
                     "a timeout is None or at least 0 seconds, not %R", seconds);
        return false;
    }
    if (value < FOREVER_S)
        *out = (int64_t)ceil(value * 1e3);
    return true;
}

bool core_count(long long count, const char *what, long long least, long long most)
{
    if (count >= least && count <= most)
        return true;
    char text[128];
    snprintf(text, sizeof text, "%s is %lld: it must be %lld or %s", what, count, count < least ? least : most,
             count < least ? "more" : "less");
    core_raise(RP_INVALID_ARGUMENT, text);
    return false;
}

bool core_number(PyObject *value, const char *what, double *out)
{
    *out = PyFloat_AsDouble(value);
    if (*out != -1.0 || !PyErr_Occurred())
        return true;
    PyErr_Format(PyExc_TypeError, "%s is a number, not %R", what, value);
    return false;
}

int core_u32(PyObject *value, void *out)
{
    PyObject *index = PyNumber_Index(value);
    int overflow = 0;
    long long count = index ? PyLong_AsLongLongAndOverflow(index, &overflow) : 0;
    bool ok = index && (overflow ? core_count(overflow > 0 ? LLONG_MAX : LLONG_MIN, "a count", 0, UINT32_MAX)
                                 : core_count(count, "a count", 0, UINT32_MAX));
    Py_XDECREF(index);
    *(uint32_t *)out = (uint32_t)count;
    return ok;
}

const char *core_text(PyObject *text, const char *what)
{
    if (!text || !PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "%s is a str, not %R", what, text ? text : Py_None);
        return NULL;
    }
    return PyUnicode_AsUTF8AndSize(text, NULL);
}

bool core_timeout_argument(PyObject *args, PyObject *kwargs, int64_t *out)
{
    static char *names[] = {"timeout", NULL};
    PyObject *seconds = Py_None;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|O", names, &seconds) && core_timeout(seconds, out);
}

void *core_alloc(size_t n, size_t size)
{
    void *memory = calloc(n ? n : 1, size);
    if (!memory)
        PyErr_NoMemory();
    return memory;
}

char *core_copy(const char *text)
{
    char *copy = text ? core_alloc(strlen(text) + 1, 1) : NULL;
    return copy ? strcpy(copy, text) : NULL;
}

void core_append(PyObject **list, PyObject *item)
{
    if (*list && (!item || PyList_Append(*list, item) < 0))
        Py_CLEAR(*list);
    Py_XDECREF(item);
}

void core_set(PyObject **tuple, size_t i, PyObject *item)
{
    if (!item || PyTuple_SetItem(*tuple, (Py_ssize_t)i, item) < 0)
        Py_CLEAR(*tuple);
}

void core_put(PyObject **dict, const char *key, PyObject *value)
{
    if (!value || PyDict_SetItemString(*dict, key, value) < 0)
        Py_CLEAR(*dict);
    Py_XDECREF(value);
}

PyObject *core_shape(const uint32_t *sizes, uint32_t n)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)n);
    for (uint32_t i = 0; shape && i < n; i++)
        core_set(&shape, i, PyLong_FromUnsignedLong(sizes[i]));
    return shape;
}

static bool add_type(PyObject *module, const struct core_type *type)
{
    const PyType_Slot given[] = {
        {Py_tp_new, (void *)type->make},      {Py_tp_dealloc, (void *)type->dealloc},
        {Py_tp_methods, type->methods},       {Py_tp_getset, type->getters},
        {Py_sq_length, (void *)type->length}, {Py_tp_doc, (void *)(uintptr_t)type->doc},
    };
    PyType_Slot slots[sizeof given / sizeof given[0] + 1];
    size_t n = 0;
    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
        if (given[i].pfunc)
            slots[n++] = given[i];
    slots[n] = (PyType_Slot){0, NULL};
    unsigned flags = (type->is_base ? Py_TPFLAGS_BASETYPE : 0) | (type->make ? 0 : Py_TPFLAGS_DISALLOW_INSTANTIATION);
    PyType_Spec spec = {.name = type->name,
                        .basicsize = (int)type->size,
                        .flags = (unsigned)Py_TPFLAGS_DEFAULT | flags,
                        .slots = slots};
    PyObject *made = !type->begin || type->begin(module) ? PyType_FromSpec(&spec) : NULL;
    if (!made || PyModule_AddObjectRef(module, strrchr(type->name, '.') + 1, made) < 0)
        return false;
    if (type->out)
        *type->out = (PyTypeObject *)made; /* kept for good, as the module is */
    return true;
}

PyObject *core_module(struct PyModuleDef *definition, const struct core_type *const *types)
{
    PyObject *module = gate_init() ? PyModule_Create(definition) : NULL;
    for (; module && *types; types++)
        if (!add_type(module, *types))
            Py_CLEAR(module);
    return module;
}

void core_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
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
