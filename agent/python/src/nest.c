/* The values of a nested step, in the order of the columns. */
#include "agent/python/src/core.h"

#include <stdlib.h>

struct nest {
    uint32_t n;         /* parts; 0: a value */
    PyObject **keys;    /* n of them; NULL: a sequence */
    PyObject *cls;      /* of a named tuple; NULL: any sequence */
    struct nest *parts; /* n of them */
};

static void fini(struct nest *nest)
{
    for (uint32_t i = 0; nest->parts && i < nest->n; i++)
        fini(&nest->parts[i]);
    for (uint32_t i = 0; nest->keys && i < nest->n; i++)
        Py_XDECREF(nest->keys[i]);
    Py_XDECREF(nest->cls);
    free(nest->parts);
    free(nest->keys);
}

static bool init(struct nest *nest, PyObject *plan)
{
    if (plan == Py_None)
        return true;
    PyObject *keys, *parts;
    if (!PyArg_ParseTuple(plan, "OO!", &keys, &PyTuple_Type, &parts))
        return false;
    nest->n = (uint32_t)PyTuple_Size(parts);
    nest->parts = core_alloc(nest->n, sizeof *nest->parts);
    nest->cls = PyType_Check(keys) ? Py_NewRef(keys) : NULL;
    nest->keys = PyTuple_Check(keys) ? core_alloc(nest->n, sizeof *nest->keys) : NULL;
    if (PyErr_Occurred())
        return false;
    for (uint32_t i = 0; nest->keys && i < nest->n; i++)
        nest->keys[i] = Py_XNewRef(PyTuple_GetItem(keys, i));
    for (uint32_t i = 0; i < nest->n && !PyErr_Occurred(); i++)
        init(&nest->parts[i], PyTuple_GetItem(parts, i));
    return !PyErr_Occurred();
}

struct nest *nest_new(PyObject *plan)
{
    struct nest *nest = core_alloc(1, sizeof *nest);
    if (nest && !init(nest, plan))
        nest_destroy(&nest);
    return nest;
}

void nest_destroy(struct nest **nest)
{
    if (!*nest)
        return;
    fini(*nest);
    free(*nest);
    *nest = NULL;
}

uint32_t nest_leaves(const struct nest *nest)
{
    uint32_t sum = nest->n == 0;
    for (uint32_t i = 0; i < nest->n; i++)
        sum += nest_leaves(&nest->parts[i]);
    return sum;
}

static bool mismatch(const char *want, uint32_t n, PyObject *got)
{
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "the step's structure differs from the first step's: wanted a %s of %u, got %R",
                     want, n, (PyObject *)Py_TYPE(got));
    return false;
}

/* The step has other keys than the first step had. */
static bool other_keys(const struct nest *nest, PyObject *step)
{
    PyObject *want = PyTuple_New(nest->n), *got = PyErr_Occurred() ? NULL : PySequence_Tuple(step);
    for (uint32_t i = 0; want && i < nest->n; i++)
        PyTuple_SetItem(want, i, Py_NewRef(nest->keys[i]));
    if (want && got)
        PyErr_Format(PyExc_ValueError, "the step has the keys %R, and the first step had %R", got, want);
    Py_XDECREF(want);
    Py_XDECREF(got);
    return false;
}

static bool flatten(const struct nest *nest, PyObject *value, PyObject ***next);

static bool flatten_mapping(const struct nest *nest, PyObject *value, PyObject ***next)
{
    if (!PyDict_CheckExact(value) && !PyDict_Check(value))
        return mismatch("dict", nest->n, value);
    if (PyDict_Size(value) != (Py_ssize_t)nest->n)
        return other_keys(nest, value);
    Py_ssize_t at = 0;
    for (uint32_t i = 0; i < nest->n; i++) {
        PyObject *key, *part;
        /* Steps that the same line makes have the same keys in the same order; a key is looked up only if it is another. */
        if (!PyDict_Next(value, &at, &key, &part) || key != nest->keys[i])
            part = PyDict_GetItemWithError(value, nest->keys[i]);
        if (!part)
            return other_keys(nest, value);
        if (nest->parts[i].n == 0)
            *(*next)++ = Py_NewRef(part);
        else if (!flatten(&nest->parts[i], part, next))
            return false;
    }
    return true;
}

/* Whether a named tuple of another class has other fields, with an exception set. A tuple without names is taken by its places. */
static bool other_fields(const struct nest *nest, PyObject *value)
{
    PyObject *got = PyObject_GetAttrString(value, "_fields"), *want = NULL;
    if (!got)
        PyErr_Clear();
    else if ((want = PyObject_GetAttrString(nest->cls, "_fields")) && PyObject_RichCompareBool(got, want, Py_NE) == 1)
        PyErr_Format(PyExc_ValueError, "the step has a %R with the fields %R, and the first step had %R with %R",
                     (PyObject *)Py_TYPE(value), got, nest->cls, want);
    Py_XDECREF(got);
    Py_XDECREF(want);
    return PyErr_Occurred() != NULL;
}

static bool flatten_sequence(const struct nest *nest, PyObject *value, PyObject ***next)
{
    bool is_tuple = PyTuple_Check(value);
    if (nest->cls && (PyObject *)Py_TYPE(value) != nest->cls && other_fields(nest, value))
        return false;
    if (!is_tuple && !PyList_Check(value))
        return mismatch("tuple or list", nest->n, value);
    if ((is_tuple ? PyTuple_Size(value) : PyList_Size(value)) != (Py_ssize_t)nest->n)
        return mismatch("tuple or list", nest->n, value);
    for (uint32_t i = 0; i < nest->n; i++)
        if (!flatten(&nest->parts[i], is_tuple ? PyTuple_GetItem(value, i) : PyList_GetItem(value, i), next))
            return false;
    return true;
}

static bool flatten(const struct nest *nest, PyObject *value, PyObject ***next)
{
    if (nest->n == 0) {
        *(*next)++ = Py_NewRef(value);
        return true;
    }
    return nest->keys ? flatten_mapping(nest, value, next) : flatten_sequence(nest, value, next);
}

void nest_release(PyObject **leaves, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        Py_CLEAR(leaves[i]);
}

bool nest_flatten(const struct nest *nest, PyObject *step, PyObject **leaves)
{
    PyObject **next = leaves;
    bool ok = flatten(nest, step, &next);
    if (!ok)
        nest_release(leaves, (uint32_t)(next - leaves));
    return ok;
}
