/* Batch: items that were sampled or fetched. Views of it keep it alive. */
#include "agent/python/src/core.h"

#include <stddef.h>

typedef struct batch_object {
    PyObject_HEAD rp_batch *batch;
    uint64_t forks;
} batch_object;

PyTypeObject *batch_type;

PyObject *batch_wrap(rp_batch *batch)
{
    batch_object *self = PyObject_New(batch_object, batch_type);
    if (!self) {
        rp_batch_release(&batch);
        return NULL;
    }
    self->batch = batch;
    self->forks = gate_forks();
    return (PyObject *)self;
}

static void batch_dealloc(PyObject *object)
{
    batch_object *self = (batch_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->forks == gate_forks())
        rp_batch_release(&self->batch);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* ---- fields */

typedef PyObject *field_fn(PyObject *object, const rp_field_view *field);

static PyObject *field_name(PyObject *object, const rp_field_view *field)
{
    (void)object;
    return PyUnicode_FromString(field->name);
}

static PyObject *field_dtype(PyObject *object, const rp_field_view *field)
{
    (void)object;
    return PyUnicode_FromString(column_name(field->dtype) ? column_name(field->dtype) : "");
}

static PyObject *field_data(PyObject *object, const rp_field_view *field)
{
    return view_new(object, field->data, field->dtype, field->rank, field->shape);
}

static PyObject *field_lengths(PyObject *object, const rp_field_view *field)
{
    if (!field->lengths)
        return Py_NewRef(Py_None);
    return view_new(object, field->lengths, RP_DTYPE_UINT32, 1, field->shape);
}

/* A tuple of what the function makes of each field. */
static PyObject *of_fields(PyObject *object, field_fn *make)
{
    const rp_batch *batch = ((batch_object *)object)->batch;
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_get_info(batch, &info);
    PyObject *out = PyTuple_New(info.n_fields);
    for (uint32_t i = 0; out && i < info.n_fields; i++) {
        PyObject *value = make(object, rp_batch_field(batch, i));
        if (!value || PyTuple_SetItem(out, i, value) < 0)
            Py_CLEAR(out);
    }
    return out;
}

static PyObject *batch_names(PyObject *object, PyObject *unused)
{
    (void)unused;
    return of_fields(object, field_name);
}

static PyObject *batch_dtypes(PyObject *object, PyObject *unused)
{
    (void)unused;
    return of_fields(object, field_dtype);
}

static PyObject *batch_fields(PyObject *object, PyObject *unused)
{
    (void)unused;
    return of_fields(object, field_data);
}

static PyObject *batch_lengths(PyObject *object, PyObject *unused)
{
    (void)unused;
    return of_fields(object, field_lengths);
}

/* ---- one value per item */

static const struct array {
    const char *name;
    size_t offset;
    int32_t dtype;
} arrays[] = {
#define ARRAY(name, dtype)                                                                                             \
    {                                                                                                                  \
#name, offsetof(rp_batch_arrays, name), RP_DTYPE_##dtype                                                       \
    }
    ARRAY(key, UINT64),     ARRAY(priority, FLOAT64),     ARRAY(probability, FLOAT64),
    ARRAY(weight, FLOAT32), ARRAY(times_sampled, UINT32), ARRAY(age_ns, UINT64),
    ARRAY(policy, UINT64),  ARRAY(step, UINT64),          ARRAY(session, UINT32),
#undef ARRAY
};

static PyObject *batch_array(PyObject *object, void *closure)
{
    const struct array *array = closure;
    rp_batch_arrays all = {.struct_size = sizeof all};
    rp_batch_get_arrays(((batch_object *)object)->batch, &all);
    const void *data = *(const void *const *)((const char *)&all + array->offset);
    const uint64_t shape[] = {all.n};
    return view_new(object, data, array->dtype, 1, shape);
}

static PyObject *batch_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    const rp_batch *batch = ((batch_object *)object)->batch;
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_get_info(batch, &info);
    return Py_BuildValue("{s:I,s:O,s:K,s:K,s:s}", "n", info.n, "partial", info.partial ? Py_True : Py_False,
                         "table_size", info.table_size, "waited_ns", info.waited_ns, "text", rp_batch_text(batch));
}

static Py_ssize_t batch_length(PyObject *object)
{
    rp_batch_info info = {.struct_size = sizeof info};
    rp_batch_get_info(((batch_object *)object)->batch, &info);
    return (Py_ssize_t)info.n;
}

static PyMethodDef methods[] = {
    {"names", batch_names, METH_NOARGS, "The names of the fields."},
    {"dtypes", batch_dtypes, METH_NOARGS, "The names of the fields' element types."},
    {"fields", batch_fields, METH_NOARGS, "The memory of each field."},
    {"lengths", batch_lengths, METH_NOARGS, "For each field, how many steps of each item are real; None: no steps."},
    {"info", batch_info, METH_NOARGS, "A dict: n, partial, table_size, waited_ns, text."},
    {NULL, NULL, 0, NULL},
};

#define GETTER(i)                                                                                                      \
    {                                                                                                                  \
        NULL, batch_array, NULL, NULL, (void *)(uintptr_t)&arrays[i]                                                   \
    }
static PyGetSetDef getters[] = {
    GETTER(0), GETTER(1), GETTER(2), GETTER(3), GETTER(4), GETTER(5), GETTER(6), GETTER(7), GETTER(8), {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, (void *)batch_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_sq_length, (void *)batch_length},
    {Py_tp_doc, "Items that were sampled."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "replaybus._core.Batch",
                           .basicsize = sizeof(batch_object),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           .slots = slots};

bool batch_register(PyObject *module)
{
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        getters[i].name = arrays[i].name;
    return core_add_type(module, "Batch", &spec, &batch_type);
}
