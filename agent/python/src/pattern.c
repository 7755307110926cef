/* Patterns: items that a writer makes by rule. */
#include "agent/python/src/core.h"

#include <stdlib.h>

static bool read_conditions(PyObject *list, rp_condition *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int kind;
        uint32_t column;
        unsigned long long a;
        PyObject *number;
        if (!PyArg_ParseTuple(PyTuple_GetItem(list, i), "iO&KO", &kind, core_u32, &column, &a, &number))
            return false;
        out[i] = (rp_condition){.kind = kind, .column = column, .a = a};
        if (kind == RP_WHEN_VALUE || kind == RP_WHEN_STEPS)
            out[i].number = PyFloat_AsDouble(number);
        else
            out[i].b = PyLong_AsUnsignedLongLong(number);
        if (PyErr_Occurred())
            return false;
    }
    return true;
}

static bool add(writer_object *self, const rp_pattern *pattern)
{
    rp_error err;
    if (!gate_enter(&self->gate, "writer"))
        return false;
    rp_status status = RP_FAILED_PRECONDITION;
    const char *text = "the writer has no columns before its first step: give it a spec";
    if (self->writer) {
        status = rp_writer_add_pattern(self->writer, pattern, &err);
        text = err.text;
    }
    gate_leave(&self->gate);
    if (status != RP_OK)
        core_raise(status, text);
    return status == RP_OK;
}

PyObject *pattern_add(PyObject *object, PyObject *args)
{
    rp_pattern pattern = {.priority = 1};
    PyObject *selection, *conditions;
    if (!PyArg_ParseTuple(args, "sdO!O!", &pattern.table, &pattern.priority, selection_type, &selection, &PyTuple_Type,
                          &conditions))
        return NULL;
    pattern.n_conditions = (uint32_t)PyTuple_Size(conditions);
    rp_condition *list = calloc(pattern.n_conditions + 1, sizeof *list);
    if (!list)
        return PyErr_NoMemory();
    pattern.conditions = list;
    pattern.slices = ((selection_object *)selection)->slices;
    pattern.n_slices = ((selection_object *)selection)->n;
    bool ok = read_conditions(conditions, list, pattern.n_conditions) && add((writer_object *)object, &pattern);
    free(list);
    return ok ? Py_NewRef(Py_None) : NULL;
}
