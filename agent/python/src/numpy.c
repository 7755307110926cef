/* Values of numpy, read in place.
 *
 * The buffer protocol costs more than all the rest of an append: numpy writes a new description of the array for every request.
 * numpy's headers declare the fields of an array and of a scalar, and programs read them through macros, so their places are a
 * part of numpy's binary interface. This extension is built without numpy. It declares the fields itself, and compares them at
 * import with what the buffer protocol says about an array and a scalar of each element type. A type that does not pass, and
 * every value that is not an array or a scalar of numpy itself, goes through the buffer protocol. */
#include "agent/python/src/core.h"

#include <string.h>

typedef struct array_object {
    PyObject_HEAD char *data;
    int ndim;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
    int flags;
} array_object;

typedef struct scalar_object {
    PyObject_HEAD char value[];
} scalar_object;

#define FLAG_C_CONTIGUOUS 1

/* What numpy has for each element type. References are kept for good, as the module is. */
static struct known {
    PyTypeObject *array, *scalar;
    PyObject *dtype;
} all_known[COLUMN_MAX_DTYPES];

const void *numpy_data(PyObject *value, const struct column *column, uint32_t rows)
{
    const struct known *known = &all_known[column->dtype];
    const PyTypeObject *type = Py_TYPE(value);
    if (type == known->scalar)
        return column->rank == 0 && rows == 0 ? ((scalar_object *)value)->value : NULL;
    const array_object *array = (array_object *)value;
    int lead = rows > 0;
    if (type != known->array || array->dtype != known->dtype || array->ndim != (int)column->rank + lead ||
        !(array->flags & FLAG_C_CONTIGUOUS) || (lead && array->shape[0] != (Py_ssize_t)rows))
        return NULL;
    for (uint32_t i = 0; i < column->rank; i++)
        if (array->shape[lead + (int)i] != (Py_ssize_t)column->shape[i])
            return NULL;
    return array->data;
}

/* ---- at import */

static bool same_array(const array_object *array, const Py_buffer *view)
{
    size_t bytes = (size_t)view->ndim * sizeof view->shape[0];
    return array->data == view->buf && array->ndim == view->ndim && memcmp(array->shape, view->shape, bytes) == 0 &&
           memcmp(array->strides, view->strides, bytes) == 0 &&
           (array->flags & FLAG_C_CONTIGUOUS) == PyBuffer_IsContiguous(view, 'C');
}

/* Whether the array's fields stand where they are expected. *dtype: its element type, 0 if the broker has none like it. */
static bool check_array(PyObject *array, int32_t *dtype)
{
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return false;
    *dtype = column_dtype(view.format, view.itemsize);
    bool same = same_array((array_object *)array, &view);
    PyBuffer_Release(&view);
    return same;
}

static bool check_scalar(PyObject *scalar, int32_t dtype)
{
    Py_buffer view;
    if (PyObject_GetBuffer(scalar, &view, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return false;
    bool same = view.ndim == 0 && view.buf == ((scalar_object *)scalar)->value &&
                column_dtype(view.format, view.itemsize) == dtype;
    PyBuffer_Release(&view);
    return same;
}

/* numpy_learn(array, transposed, scalar, dtype): whether values of this element type are read in place. */
PyObject *numpy_learn(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *array, *transposed, *scalar, *dtype;
    int32_t number, other;
    if (!PyArg_ParseTuple(args, "OOOO", &array, &transposed, &scalar, &dtype))
        return NULL;
    bool learned = check_array(array, &number) && check_array(transposed, &other) && number > 0 && other == number &&
                   check_scalar(scalar, number) && ((array_object *)array)->dtype == dtype;
    if (learned)
        all_known[number] = (struct known){.array = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(array)),
                                           .scalar = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(scalar)),
                                           .dtype = Py_NewRef(dtype)};
    PyErr_Clear();
    return PyBool_FromLong(learned);
}
