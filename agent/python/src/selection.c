/* Selection: the slices of an item, prepared once for many items. */
#include "agent/python/src/core.h"

#include <stdlib.h>
#include <string.h>

PyTypeObject *selection_type;

static bool read_slice(PyObject *spec, rp_slice *out)
{
    const char *name;
    int squeeze;
    long long start;
    if (!PyArg_ParseTuple(spec, "sO&O&LO&p", &name, core_u32, &out->column, core_u32, &out->count, &start, core_u32,
                          &out->stride, &squeeze))
        return false;
    out->start = start;
    out->squeeze = (uint32_t)squeeze;
    out->field = strdup(name);
    if (!out->field)
        PyErr_NoMemory();
    return out->field != NULL;
}

static PyObject *selection_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *slices;
    if (kwargs && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "a selection takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &slices))
        return NULL;
    selection_object *self = PyObject_New(selection_object, type);
    if (!self)
        return NULL;
    self->n = (uint32_t)PyTuple_Size(slices);
    self->slices = calloc(self->n ? self->n : 1, sizeof *self->slices);
    bool ok = self->slices != NULL;
    if (!ok)
        PyErr_NoMemory();
    for (uint32_t i = 0; ok && i < self->n; i++)
        ok = read_slice(PyTuple_GetItem(slices, i), &self->slices[i]);
    if (ok)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void selection_dealloc(PyObject *object)
{
    selection_object *self = (selection_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (uint32_t i = 0; self->slices && i < self->n; i++)
        free((char *)(uintptr_t)self->slices[i].field);
    free(self->slices);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)selection_make},
    {Py_tp_dealloc, (void *)selection_dealloc},
    {Py_tp_doc, "Selection(((field, column, count, start, stride, squeeze), ...)): made by Writer.select."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._core.Selection",
                           .basicsize = sizeof(selection_object),
                           .flags = Py_TPFLAGS_DEFAULT,
                           .slots = slots};

bool selection_register(PyObject *module)
{
    return core_add_type(module, "Selection", &spec, &selection_type);
}
