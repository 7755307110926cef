/* Values of numpy, read in place, and arrays over memory of the library.
 *
 * The buffer protocol costs more than all the rest of an append: numpy writes a new description of the array for every request.
 * numpy's headers declare the fields of an array and of a scalar, and programs read them through macros, so their places are a
 * part of numpy's binary interface, as the table of its functions is. This extension is built without numpy: it declares what it
 * uses itself. At import it looks at the version of the interface, and compares the fields with what the buffer protocol says
 * about an array and a scalar of each element type. Values of a type that does not pass, and values that are not arrays or scalars
 * of numpy itself, go through the buffer protocol. */
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

#define FLAG_C_CONTIGUOUS 0x1
#define FLAGS_WRITABLE_C_ARRAY (FLAG_C_CONTIGUOUS | 0x100 | 0x400) /* aligned, writable */
#define MAX_NDIM (RP_MAX_RANK + 2)

/* Places in the table of numpy's functions. */
enum { API_VERSION = 0, API_ARRAY_TYPE = 2, API_NEW_FROM_DTYPE = 94, API_SET_BASE = 282 };
#define VERSION_1 0x01000009u
#define VERSION_2 0x02000000u

static struct api {
    PyTypeObject *array_type;
    /* Takes the reference to dtype. */
    PyObject *(*new_from_dtype)(PyTypeObject *type, PyObject *dtype, int ndim, const Py_ssize_t *shape,
                                const Py_ssize_t *strides, void *data, int flags, PyObject *object);
    /* Takes the reference to base, also when it fails. */
    int (*set_base)(PyObject *array, PyObject *base);
} api;

/* What numpy has for each element type. References are kept for good, as the module is. */
static struct known {
    PyObject *dtype;
    PyTypeObject *array, *scalar; /* of values that are read in place; NULL: the fields differ from what is expected */
} all_known[COLUMN_MAX_DTYPES];

/* ---- arrays over memory of the library */

PyObject *numpy_array(PyObject *owner, const void *data, int32_t dtype, uint32_t rank, const uint64_t *shape)
{
    const struct known *known = &all_known[dtype == RP_DTYPE_BFLOAT16 ? RP_DTYPE_UINT16 : dtype];
    if (!api.array_type || !known->dtype || rank > MAX_NDIM)
        return core_raise(RP_UNSUPPORTED, "a field has an element type or a rank that numpy cannot show");
    Py_ssize_t sizes[MAX_NDIM];
    for (uint32_t i = 0; i < rank; i++)
        sizes[i] = (Py_ssize_t)shape[i];
    PyObject *array = api.new_from_dtype(api.array_type, Py_NewRef(known->dtype), (int)rank, sizes, NULL,
                                         (void *)(uintptr_t)data, FLAGS_WRITABLE_C_ARRAY, NULL);
    if (array && api.set_base(array, Py_NewRef(owner)) < 0)
        Py_CLEAR(array);
    return array;
}

/* ---- values */

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

/* numpy_setup(capsule): takes the table of numpy's functions. */
PyObject *numpy_setup(PyObject *module, PyObject *capsule)
{
    (void)module;
    void **table = PyCapsule_GetPointer(capsule, NULL);
    if (!table)
        return NULL;
    unsigned version = ((unsigned (*)(void))table[API_VERSION])();
    if (version != VERSION_1 && version != VERSION_2)
        return PyErr_Format(PyExc_ImportError, "numpy's binary interface has the version %x; replaybus knows %x and %x",
                            version, VERSION_1, VERSION_2);
    api.array_type = table[API_ARRAY_TYPE];
    memcpy(&api.new_from_dtype, &table[API_NEW_FROM_DTYPE], sizeof api.new_from_dtype);
    memcpy(&api.set_base, &table[API_SET_BASE], sizeof api.set_base);
    return Py_NewRef(Py_None);
}

/* numpy_learn(array, transposed, scalar): takes their element type. Returns whether such values are read in place. */
PyObject *numpy_learn(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *array, *transposed, *scalar;
    int32_t number = 0, other = 0;
    if (!PyArg_ParseTuple(args, "OOO", &array, &transposed, &scalar))
        return NULL;
    PyObject *dtype = PyObject_GetAttrString(array, "dtype");
    if (!dtype)
        return NULL;
    bool in_place = check_array(array, &number) && check_array(transposed, &other) && other == number &&
                    check_scalar(scalar, number) && ((array_object *)array)->dtype == dtype;
    PyErr_Clear();
    if (number > 0)
        all_known[number] = (struct known){.dtype = Py_NewRef(dtype)};
    if (number > 0 && in_place) {
        all_known[number].array = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(array));
        all_known[number].scalar = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(scalar));
    }
    Py_DECREF(dtype);
    return PyBool_FromLong(in_place);
}
