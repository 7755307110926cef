/* Columns, and the bytes of a value. */
#include "agent/python/src/core.h"

#include <stdlib.h>
#include <string.h>

static const struct dtype {
    const char *name;
    uint32_t itemsize;
} dtypes[] = {
    [RP_DTYPE_BOOL] = {"bool", 1},
    [RP_DTYPE_INT8] = {"int8", 1},
    [RP_DTYPE_INT16] = {"int16", 2},
    [RP_DTYPE_INT32] = {"int32", 4},
    [RP_DTYPE_INT64] = {"int64", 8},
    [RP_DTYPE_UINT8] = {"uint8", 1},
    [RP_DTYPE_UINT16] = {"uint16", 2},
    [RP_DTYPE_UINT32] = {"uint32", 4},
    [RP_DTYPE_UINT64] = {"uint64", 8},
    [RP_DTYPE_FLOAT16] = {"float16", 2},
    [RP_DTYPE_BFLOAT16] = {"bfloat16", 2},
    [RP_DTYPE_FLOAT32] = {"float32", 4},
    [RP_DTYPE_FLOAT64] = {"float64", 8},
    [RP_DTYPE_COMPLEX64] = {"complex64", 8},
    [RP_DTYPE_COMPLEX128] = {"complex128", 16},
};
#define N_DTYPES ((int32_t)(sizeof dtypes / sizeof dtypes[0]))
_Static_assert(N_DTYPES <= COLUMN_MAX_DTYPES, "numpy.c has a row for each element type");

const char *column_name(int32_t dtype)
{
    return dtype > 0 && dtype < N_DTYPES ? dtypes[dtype].name : NULL;
}

static int32_t signed_dtype(Py_ssize_t itemsize)
{
    return itemsize == 8   ? RP_DTYPE_INT64
           : itemsize == 4 ? RP_DTYPE_INT32
           : itemsize == 2 ? RP_DTYPE_INT16
                           : RP_DTYPE_INT8;
}

static int32_t unsigned_dtype(Py_ssize_t itemsize)
{
    return itemsize == 8   ? RP_DTYPE_UINT64
           : itemsize == 4 ? RP_DTYPE_UINT32
           : itemsize == 2 ? RP_DTYPE_UINT16
                           : RP_DTYPE_UINT8;
}

int32_t column_dtype(const char *format, Py_ssize_t itemsize)
{
    if (!format)
        return RP_DTYPE_UINT8;
    if (*format == '<' || *format == '=' || *format == '@' || *format == '|')
        format++;
    if (format[0] == 'Z')
        return format[1] == 'f' ? RP_DTYPE_COMPLEX64 : format[1] == 'd' ? RP_DTYPE_COMPLEX128 : 0;
    if (format[0] == '\0' || format[1] != '\0')
        return 0;
    switch (format[0]) {
    case '?':
        return RP_DTYPE_BOOL;
    case 'f':
        return RP_DTYPE_FLOAT32;
    case 'd':
        return RP_DTYPE_FLOAT64;
    case 'e':
        return RP_DTYPE_FLOAT16;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
        return signed_dtype(itemsize);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
        return unsigned_dtype(itemsize);
    default:
        return 0;
    }
}

static bool read_shape(PyObject *shape, struct column *out)
{
    Py_ssize_t rank = PyTuple_Size(shape);
    if (rank < 0)
        return false;
    if (rank > (Py_ssize_t)RP_MAX_RANK) {
        PyErr_Format(PyExc_ValueError, "column '%s' has %zd dimensions, at most %u are possible", out->name, rank,
                     RP_MAX_RANK);
        return false;
    }
    out->rank = (uint32_t)rank;
    out->row_bytes = out->itemsize;
    for (Py_ssize_t i = 0; i < rank; i++) {
        long long size = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        if (size < 0 || size > INT32_MAX) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "column '%s' has a dimension of size %lld", out->name, size);
            return false;
        }
        out->shape[i] = (uint32_t)size;
        if (size > 0 && out->row_bytes > RP_MAX_ROW_BYTES / (uint64_t)size) {
            PyErr_Format(PyExc_ValueError, "a row of column '%s' has more than 1 GiB", out->name);
            return false;
        }
        out->row_bytes *= (uint64_t)size;
    }
    return true;
}

bool column_read(PyObject *spec, struct column *out)
{
    const char *name, *dtype;
    PyObject *shape;
    if (!PyArg_ParseTuple(spec, "ssO!", &name, &dtype, &PyTuple_Type, &shape))
        return false;
    *out = (struct column){.name = strdup(name)};
    if (!out->name) {
        PyErr_NoMemory();
        return false;
    }
    for (int32_t i = 1; i < N_DTYPES; i++)
        if (strcmp(dtypes[i].name, dtype) == 0) {
            out->dtype = i;
            out->itemsize = dtypes[i].itemsize;
        }
    if (out->dtype != 0)
        return read_shape(shape, out);
    PyErr_Format(PyExc_ValueError, "column '%s': there is no element type '%s'", name, dtype);
    return false;
}

void column_fini(struct column *column)
{
    free(column->name);
    column->name = NULL;
}

/* ---- values */

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
    PyObject *hook = core_hook("convert");
    PyObject *shape = hook ? PyTuple_New((Py_ssize_t)column->rank + (rows > 0)) : NULL;
    for (uint32_t i = 0; shape && i < column->rank + (rows > 0); i++) {
        uint32_t size = rows > 0 ? (i == 0 ? rows : column->shape[i - 1]) : column->shape[i];
        PyTuple_SetItem(shape, (Py_ssize_t)i, PyLong_FromUnsignedLong(size));
    }
    PyObject *array =
        shape ? PyObject_CallFunction(hook, "OssO", value, column->name, dtypes[column->dtype].name, shape) : NULL;
    Py_XDECREF(shape);
    Py_XDECREF(hook);
    return array;
}

/* The quick ways: a value of numpy in place, or a Python number. */
static const void *take_quickly(struct column *column, PyObject *value, uint32_t rows)
{
    const void *data = numpy_data(value, column, rows);
    if (data || column->rank > 0 || rows > 0)
        return data;
    return store_number(column, value) ? column->scalar : NULL;
}

bool cell_take(struct cell *cell, struct column *column, PyObject *value, uint32_t rows)
{
    cell->view.obj = NULL;
    cell->data = take_quickly(column, value, rows);
    if (cell->data)
        return true;
    if (PyObject_GetBuffer(value, &cell->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
        if (fits(column, &cell->view, rows)) {
            cell->data = cell->view.buf;
            return true;
        }
        PyBuffer_Release(&cell->view);
    }
    PyErr_Clear();
    cell->view.obj = NULL;
    PyObject *array = convert(column, value, rows);
    if (!array)
        return false;
    int failed = PyObject_GetBuffer(array, &cell->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
    Py_DECREF(array); /* the view keeps it */
    if (failed)
        return false;
    cell->data = cell->view.buf;
    if (fits(column, &cell->view, rows))
        return true;
    PyBuffer_Release(&cell->view);
    cell->view.obj = NULL;
    PyErr_Format(PyExc_ValueError, "column '%s': the converted value has another type or shape", column->name);
    return false;
}

void cells_release(struct cell *cells, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (cells[i].view.obj)
            PyBuffer_Release(&cells[i].view);
}
