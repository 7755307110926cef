/* The configuration of a run for Python: read from a file or a text, and as a dict by the names of docs/CONFIG.md. */
#include <string.h>

#include "agent/python/agent/agent.h"

bool config_read(PyObject *source, struct run_config *out)
{
    const char *path, *text;
    PyObject *list;
    const char *overrides[64] = {NULL};
    if (!PyArg_ParseTuple(source, "zzO!", &path, &text, &PyTuple_Type, &list))
        return false;
    Py_ssize_t n = PyTuple_Size(list);
    if (n >= 64) {
        PyErr_SetString(PyExc_ValueError, "there are more than 63 overrides");
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!(overrides[i] = core_text(PyTuple_GetItem(list, i), "an override")))
            return false;
    struct schema_report *report = schema_report_new();
    bool ok = text ? run_config_read_text("config", text, overrides, out, report)
                   : run_config_read(path, overrides, out, report);
    if (!ok)
        core_raise(RP_INVALID_ARGUMENT, schema_report_text(report));
    schema_report_destroy(&report);
    return ok;
}

static PyObject *text_of(const char *text)
{
    return PyUnicode_FromString(text ? text : "");
}

PyObject *config_options(const struct schema_list *list)
{
    const rp_option *options = list->data;
    PyObject *out = PyDict_New();
    for (uint32_t i = 0; out && i < list->count; i++)
        core_put(&out, options[i].name, text_of(options[i].value));
    return out;
}

static PyObject *list_of(const struct schema_row *row, const struct schema_list *list)
{
    PyObject *out = PyList_New(0);
    for (uint32_t i = 0; i < list->count; i++)
        core_append(&out, row->type == SCHEMA_INTS ? PyLong_FromLongLong(((const int64_t *)list->data)[i])
                                                   : text_of(((char *const *)list->data)[i]));
    return out;
}

/* The value of a row; None for a kind of value that has no form here. */
static PyObject *value_of(const struct schema_row *row, const void *at)
{
    switch (row->type) {
    case SCHEMA_BOOL:
        return PyBool_FromLong(*(const bool *)at);
    case SCHEMA_INT:
    case SCHEMA_BYTES:
        return PyLong_FromLongLong(*(const int64_t *)at);
    case SCHEMA_TIME:
        return PyFloat_FromDouble((double)*(const int64_t *)at * 1e-9);
    case SCHEMA_REAL:
        return PyFloat_FromDouble(*(const double *)at);
    case SCHEMA_STRING:
    case SCHEMA_PATH:
        return text_of(*(char *const *)at);
    case SCHEMA_ENUM:
        return text_of(row->choices[*(const int32_t *)at]);
    case SCHEMA_STRINGS:
    case SCHEMA_PATHS:
    case SCHEMA_INTS:
        return list_of(row, at);
    case SCHEMA_OPTIONS:
        return config_options(at);
    default:
        return Py_NewRef(Py_None);
    }
}

PyObject *config_dict(PyObject *module, PyObject *source)
{
    (void)module;
    struct run_config config = {0};
    const struct schema *schema = run_schema();
    PyObject *out = config_read(source, &config) ? PyDict_New() : NULL;
    for (uint32_t i = 0; out && i < schema->n_rows; i++) {
        const struct schema_row *row = &schema->rows[i];
        if (!strchr(row->path, '[')) /* not of an element of a list */
            core_put(&out, row->path, value_of(row, (const char *)&config + row->offset));
    }
    run_config_free(&config);
    return out;
}
