/* View: memory of a batch through the buffer protocol, so that numpy.asarray makes an array without a copy. */
#include "agent/python/src/core.h"

#define MAX_NDIM (RP_MAX_RANK + 2)

typedef struct view_object {
    PyObject_HEAD PyObject *owner;
    void *data;
    const char *format;
    Py_ssize_t itemsize, bytes;
    int ndim;
    Py_ssize_t shape[MAX_NDIM], strides[MAX_NDIM];
} view_object;

static PyTypeObject *view_type;

static Py_ssize_t itemsize_of(const char *format)
{
    switch (format[0]) {
    case '?':
    case 'b':
    case 'B':
        return 1;
    case 'h':
    case 'H':
    case 'e':
        return 2;
    case 'i':
    case 'I':
    case 'f':
        return 4;
    case 'Z':
        return format[1] == 'f' ? 8 : 16;
    default:
        return 8;
    }
}

PyObject *view_new(PyObject *owner, const void *data, int32_t dtype, uint32_t rank, const uint64_t *shape)
{
    const char *format = column_format(dtype);
    if (!format || rank > MAX_NDIM)
        return core_raise(RP_UNSUPPORTED, "a field has an element type or a rank that Python cannot show");
    view_object *self = PyObject_New(view_object, view_type);
    if (!self)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->data = (void *)(uintptr_t)data;
    self->format = format;
    self->itemsize = itemsize_of(format);
    self->ndim = (int)rank;
    self->bytes = self->itemsize;
    for (int i = (int)rank - 1; i >= 0; i--) {
        self->shape[i] = (Py_ssize_t)shape[i];
        self->strides[i] = self->bytes;
        self->bytes *= self->shape[i];
    }
    return (PyObject *)self;
}

/* Memory in C order is in Fortran order too if at most one dimension has several elements. */
static bool is_fortran(const view_object *self)
{
    int several = 0;
    for (int i = 0; i < self->ndim; i++)
        several += self->shape[i] > 1;
    return several <= 1;
}

static int view_get(PyObject *object, Py_buffer *out, int flags)
{
    view_object *self = (view_object *)object;
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !is_fortran(self)) {
        out->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "a batch is in C order, not in Fortran order");
        return -1;
    }
    *out = (Py_buffer){.buf = self->data,
                       .obj = Py_NewRef(object),
                       .len = self->bytes,
                       .itemsize = self->itemsize,
                       .ndim = self->ndim,
                       .format = flags & PyBUF_FORMAT ? (char *)(uintptr_t)self->format : NULL,
                       .shape = flags & PyBUF_ND ? self->shape : NULL,
                       .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL};
    return 0;
}

static void view_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_DECREF(((view_object *)object)->owner);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_dealloc, (void *)view_dealloc},
    {Py_bf_getbuffer, (void *)view_get},
    {Py_tp_doc, "Memory of a batch, for numpy.asarray."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._core.View",
                           .basicsize = sizeof(view_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           .slots = slots};

bool view_register(PyObject *module)
{
    return core_add_type(module, "View", &spec, &view_type);
}
