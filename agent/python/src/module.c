/* The module replaybus._core. */
#include "agent/python/src/core.h"

static PyObject *statuses(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *list = PyList_New(0);
#define ADD_STATUS(name, code, text) core_append(&list, Py_BuildValue("(iss)", code, #name, text));
    RP_STATUS_LIST(ADD_STATUS)
#undef ADD_STATUS
    return list;
}

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(rp_version());
}

static PyMethodDef methods[] = {
    CORE_METHODS,
    {"statuses", statuses, METH_NOARGS, "[(code, name, meaning)]"},
    {"version", version, METH_NOARGS, "The version of libreplay."},
    {"append_rows", rows_append, METH_VARARGS,
     "append_rows(writers, block, step, table, steps, priorities, done, timeout, sequence=None): the number of items "
     "made. sequence: (length, period, burn_in, roles of the columns, selection, last observations or None)."},
    {"check_sequence", rows_check_sequence, METH_VARARGS,
     "check_sequence(length, period, burn_in): an error if there are no such sequences."},
    {"weights_encode", weights_from_arrays, METH_O, "weights_encode({name: array}): a block of proto/PROTOCOL.md, 21."},
    {"weights_bf16", weights_half, METH_O, "weights_bf16(block): the same tensors, with bfloat16 for float32."},
    {"weights_list", weights_entries, METH_O, "weights_list(block): [(name, dtype, shape, offset)]"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "replaybus._core",
                                        .m_doc = "libreplay for Python.", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    static const struct core_type *const types[] = {
        &client_core, &writer_core,    &selection_core,  &transitions_core, &sampler_core, &memory_core, &batch_core,
        &pool_core,   &publisher_core, &subscriber_core, &updater_core,     &reduce_core,  &server_core, NULL};
    return core_module(&definition, types);
}
