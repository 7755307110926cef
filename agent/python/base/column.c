/* Values of steps as bytes, and arrays over memory of the library.
 *
 * The buffer protocol costs more than all the rest of an append: numpy writes a new description of the array for every request.
 * numpy's headers declare the fields of an array and of a scalar, and programs read them through macros, so their places are a
 * part of numpy's binary interface, as the table of its functions is. This extension is built without numpy: it declares what it
 * uses itself. At import it looks at the version of the interface, and compares the fields with what the buffer protocol says
 * about an array and a scalar of each element type. Values of a type that does not pass, and values that are not arrays or scalars
 * of numpy itself, go through the buffer protocol. */
#include "agent/python/base/base.h"

#include <string.h>

/* The first letter of the names of the element types that have this format of the buffer protocol; 0: none has. */
static char kind_of(const char *format)
{
    if (format[0] == 'Z' && (format[1] == 'f' || format[1] == 'd') && format[2] == '\0')
        return 'c';
    if (format[0] == '\0' || format[1] != '\0')
        return 0;
    return strchr("bhilq", *format)   ? 'i'
           : strchr("BHILQ", *format) ? 'u'
           : strchr("efd", *format)   ? 'f'
           : *format == '?'           ? 'b'
                                      : 0;
}

int32_t column_dtype(const char *format, Py_ssize_t itemsize)
{
    if (!format)
        return RP_DTYPE_UINT8;
    if (*format == '<' || *format == '=' || *format == '@' || *format == '|')
        format++;
    char kind = kind_of(format);
    for (int32_t i = 1; kind && dtype_size(i); i++)
        if (dtype_name(i)[0] == kind && (Py_ssize_t)dtype_size(i) == itemsize)
            return i;
    return 0;
}

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
} all_known[RP_DTYPE_COMPLEX128 + 1];

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

PyObject *numpy_empty(const struct column *column, uint32_t rows, void **data)
{
    const struct known *known = &all_known[column->dtype];
    if (!api.array_type || !known->dtype)
        return core_raise(RP_UNSUPPORTED, "numpy has no such element type");
    Py_ssize_t sizes[MAX_NDIM] = {rows};
    int lead = rows > 0;
    for (uint32_t i = 0; i < column->rank; i++)
        sizes[lead + (int)i] = (Py_ssize_t)column->shape[i];
    PyObject *array = api.new_from_dtype(api.array_type, Py_NewRef(known->dtype), (int)column->rank + lead, sizes, NULL,
                                         NULL, 0, NULL);
    *data = array ? ((array_object *)array)->data : NULL;
    return array;
}

/* ---- values */

/* The memory of an array or a scalar of numpy that has the column's type and shape, as cell_take wants it. NULL without an
 * exception: another value. */
static const void *numpy_data(PyObject *value, const struct column *column, uint32_t rows)
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

#define STORE(type, value)                                                                                             \
    do {                                                                                                               \
        type stored_ = (type)(value);                                                                                  \
        memcpy(column->scalar, &stored_, sizeof stored_);                                                              \
    } while (0)

/* A float, or a bool, for a column of float32 or float64. False: the column has another type; no exception is set. */
static bool store_float(struct column *column, PyObject *value)
{
    if (column->dtype != RP_DTYPE_FLOAT32 && column->dtype != RP_DTYPE_FLOAT64)
        return false;
    double number = PyFloat_AsDouble(value);
    if (column->dtype == RP_DTYPE_FLOAT32)
        STORE(float, number);
    else
        STORE(double, number);
    return true;
}

/* An int that fits. False: the slow way decides, which also words the error. */
static bool store_int(struct column *column, PyObject *value)
{
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0)
        return false;
    if (column->dtype == RP_DTYPE_INT64)
        STORE(int64_t, number);
    else if (column->dtype == RP_DTYPE_INT32 && number >= INT32_MIN && number <= INT32_MAX)
        STORE(int32_t, number);
    else if (column->dtype == RP_DTYPE_UINT8 && number >= 0 && number <= UINT8_MAX)
        STORE(uint8_t, number);
    else
        return false;
    return true;
}

static bool store_number(struct column *column, PyObject *value)
{
    if (PyFloat_CheckExact(value))
        return store_float(column, value);
    if (value == Py_True || value == Py_False) {
        if (column->dtype == RP_DTYPE_BOOL) {
            STORE(uint8_t, value == Py_True);
            return true;
        }
        return store_float(column, value) || store_int(column, value);
    }
    return PyLong_CheckExact(value) && store_int(column, value);
}

static bool fits(const struct column *column, const Py_buffer *view, uint32_t rows)
{
    int32_t dtype = column_dtype(view->format, view->itemsize);
    if (dtype != column->dtype && !(dtype == RP_DTYPE_UINT16 && column->dtype == RP_DTYPE_BFLOAT16))
        return false;
    int lead = rows > 0;
    if (view->ndim != (int)column->rank + lead || (lead && view->shape[0] != (Py_ssize_t)rows))
        return false;
    for (uint32_t i = 0; i < column->rank; i++)
        if (view->shape[lead + (int)i] != (Py_ssize_t)column->shape[i])
            return false;
    return true;
}

/* The slow way: Python makes an array of the right type and shape, or says why it cannot. */
static PyObject *convert(const struct column *column, PyObject *value, uint32_t rows)
{
    uint32_t sizes[RP_MAX_RANK + 1] = {rows}, lead = rows > 0;
    memcpy(sizes + lead, column->shape, column->rank * sizeof sizes[0]);
    PyObject *shape = core_shape(sizes, column->rank + lead);
    PyObject *array = shape ? core_convert(value, column->name, dtype_name(column->dtype), shape) : NULL;
    Py_XDECREF(shape);
    return array;
}

/* Takes a value through the buffer protocol. False without an exception: it has another type or shape. */
static bool take_buffer(struct cell *cell, const struct column *column, PyObject *value, uint32_t rows)
{
    if (PyObject_GetBuffer(value, &cell->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
        cell->data = cell->view.buf;
        if (fits(column, &cell->view, rows))
            return true;
        PyBuffer_Release(&cell->view);
    }
    PyErr_Clear();
    cell->view.obj = NULL;
    return false;
}

bool cell_take(struct cell *cell, struct column *column, PyObject *value, uint32_t rows)
{
    cell->view.obj = NULL;
    cell->data = numpy_data(value, column, rows);
    if (!cell->data && column->rank == 0 && rows == 0 && store_number(column, value))
        cell->data = column->scalar;
    if (cell->data || take_buffer(cell, column, value, rows))
        return true;
    PyObject *array = convert(column, value, rows);
    if (!array)
        return false;
    bool ok = take_buffer(cell, column, array, rows);
    Py_DECREF(array); /* the view keeps it */
    if (!ok)
        PyErr_Format(PyExc_ValueError, "column '%s': the converted value has another type or shape", column->name);
    return ok;
}

/* Whether an array can be read in place as so many rows of the column. Dimensions of 1 do not count. */
static bool has_rows(const array_object *array, const struct column *column, uint32_t rows)
{
    uint32_t sizes[RP_MAX_RANK + 1] = {rows}, n = rows != 1, at = 0;
    for (uint32_t i = 0; i < column->rank; i++)
        if (column->shape[i] != 1)
            sizes[n++] = column->shape[i];
    for (int i = 0; i < array->ndim; i++)
        if (array->shape[i] != 1 && (at == n || array->shape[i] != (Py_ssize_t)sizes[at++]))
            return false;
    return at == n && (array->flags & FLAG_C_CONTIGUOUS);
}

/* Puts the floats of n doubles or truth values into `out`; NULL: they have another type. */
static const void *to_floats(const void *data, const PyObject *dtype, uint32_t n, float *out)
{
    bool wide = dtype == all_known[RP_DTYPE_FLOAT64].dtype;
    if (!wide && dtype != all_known[RP_DTYPE_BOOL].dtype)
        return NULL;
    for (uint32_t i = 0; i < n; i++)
        out[i] = wide ? (float)((const double *)data)[i] : (float)((const uint8_t *)data)[i];
    return out;
}

bool cell_take_any(struct cell *cell, struct column *column, PyObject *value, uint32_t rows, void *scratch)
{
    const struct known *known = &all_known[column->dtype], *wide = &all_known[RP_DTYPE_FLOAT64];
    const PyTypeObject *type = Py_TYPE(value);
    int64_t wanted = (int64_t)(rows * (column->row_bytes / dtype_size(column->dtype)));
    bool is_float = column->dtype == RP_DTYPE_FLOAT32 && column->rank == 0;
    cell->view.obj = NULL;
    cell->data = NULL;
    if (type == known->array && has_rows((array_object *)value, column, rows)) {
        const array_object *array = (array_object *)value;
        if (array->dtype == known->dtype)
            cell->data = array->data;
        else if (is_float)
            cell->data = to_floats(array->data, array->dtype, rows, scratch);
    } else if (wanted == 1 && type == known->scalar) {
        cell->data = ((scalar_object *)value)->value;
    } else if (wanted == 1 && is_float && type == wide->scalar) {
        cell->data = to_floats(((scalar_object *)value)->value, wide->dtype, 1, scratch);
    } else if (wanted == 1 && store_number(column, value)) {
        cell->data = memcpy(scratch, column->scalar, sizeof column->scalar);
    }
    return cell->data;
}

void cells_release(struct cell *cells, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (cells[i].view.obj)
            PyBuffer_Release(&cells[i].view);
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
