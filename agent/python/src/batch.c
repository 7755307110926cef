/* Batch: items that were sampled or fetched.
 *
 * Memory owns the library's batch, and arrays over it keep the Memory. Batch has the arrays that were asked for, so it is another
 * object: arrays that the owner of their memory kept would be a circle of references. */
#include "agent/python/src/core.h"

#include <stddef.h>

typedef struct memory_object {
    PyObject_HEAD rp_batch *batch;
    rp_batch_info info;
    rp_batch_arrays arrays;
    PyObject *pool; /* of the batch's memory; may be NULL */
} memory_object;

static const struct array {
    const char *name;
    size_t offset;
    int32_t dtype;
    const char *doc;
    bool optional; /* None if the library has none */
} arrays[] = {
#define ARRAY(name, dtype, doc)                                                                                        \
    {                                                                                                                  \
#name, offsetof(rp_batch_arrays, name), RP_DTYPE_##dtype, doc, false                                           \
    }
    ARRAY(key, UINT64, "The items' keys, uint64."),
    ARRAY(priority, FLOAT64, "The items' priorities, float64."),
    ARRAY(probability, FLOAT64, "The probability of each pick when it was made, float64."),
    ARRAY(weight, FLOAT32,
          "Importance weights, float32: (1 / (table size * probability))^beta, divided by the batch's largest."),
    ARRAY(times_sampled, UINT32, "How often each item was sampled, this time included."),
    ARRAY(age_ns, UINT64, "Nanoseconds since each item was inserted, uint64."),
    ARRAY(policy, UINT64, "The version of the parameters that made each item."),
    ARRAY(step, UINT64, "The number of each item's first step in its stream."),
    ARRAY(session, UINT32, "The number of the session that wrote each item, at its shard."),
#undef ARRAY
    {"source", offsetof(rp_batch_arrays, source), RP_DTYPE_UINT32,
     "The index of the source that each item came from. None: the sampler has one source.", true},
    {"shard", offsetof(rp_batch_arrays, shard), RP_DTYPE_UINT32,
     "The number of the shard that has each item. None: there are no shards.", true},
    {"group", offsetof(rp_batch_arrays, group), RP_DTYPE_UINT64,
     "The key of each item's group, uint64; its members are adjacent. None: the table has no groups.", true},
};
#define N_ARRAYS (sizeof arrays / sizeof arrays[0])

typedef struct batch_object {
    PyObject_HEAD PyObject *memory;
    PyObject *nodes;            /* for the subclass */
    PyObject *arrays[N_ARRAYS]; /* NULL: not asked for yet */
} batch_object;

static PyTypeObject *memory_type;

PyObject *batch_wrap(rp_batch *batch, PyObject *pool)
{
    memory_object *self = (memory_object *)PyType_GenericAlloc(memory_type, 0);
    if (!self) {
        rp_batch_release(&batch);
        return NULL;
    }
    self->batch = batch;
    self->info.struct_size = sizeof self->info;
    self->arrays.struct_size = sizeof self->arrays;
    rp_batch_get_info(batch, &self->info);
    rp_batch_get_arrays(batch, &self->arrays);
    self->pool = Py_XNewRef(pool);
    return (PyObject *)self;
}

static void memory_dealloc(PyObject *object)
{
    memory_object *self = (memory_object *)object;
    rp_batch_release(&self->batch);
    Py_CLEAR(self->pool);
    core_free(object);
}

static PyObject *batch_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *memory, *nodes;
    if (kwargs && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "a batch takes no keywords");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!", memory_type, &memory, &PyDict_Type, &nodes))
        return NULL;
    batch_object *self = (batch_object *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->memory = Py_NewRef(memory);
    self->nodes = Py_NewRef(nodes);
    return (PyObject *)self;
}

static void batch_dealloc(PyObject *object)
{
    batch_object *self = (batch_object *)object;
    for (size_t i = 0; i < N_ARRAYS; i++)
        Py_CLEAR(self->arrays[i]);
    Py_CLEAR(self->nodes);
    Py_CLEAR(self->memory);
    core_free(object);
}

static const memory_object *memory_of(PyObject *object)
{
    return (memory_object *)((batch_object *)object)->memory;
}

/* An array over the batch's memory. */
static PyObject *view_of(PyObject *object, const void *data, int32_t dtype, uint64_t n)
{
    return numpy_array(((batch_object *)object)->memory, data, dtype, 1, &n);
}

/* The batch's array in this row of the table; NULL: it has none. */
static const void *data_of(PyObject *object, const struct array *array)
{
    return *(const void *const *)((const char *)&memory_of(object)->arrays + array->offset);
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
    return PyUnicode_FromString(dtype_name(field->dtype) ? dtype_name(field->dtype) : "");
}

static PyObject *field_data(PyObject *object, const rp_field_view *field)
{
    return numpy_array(((batch_object *)object)->memory, field->data, field->dtype, field->rank, field->shape);
}

static PyObject *field_lengths(PyObject *object, const rp_field_view *field)
{
    return field->lengths ? view_of(object, field->lengths, RP_DTYPE_UINT32, memory_of(object)->info.n)
                          : Py_NewRef(Py_None);
}

static PyObject *field_squeezed(PyObject *object, const rp_field_view *field)
{
    (void)object;
    return PyBool_FromLong(field->squeezed != 0);
}

static uint64_t offset_of(PyObject *object, const void *data)
{
    return (uint64_t)((const char *)data - (const char *)memory_of(object)->info.memory);
}

/* (dtype, offset, bytes, shape, offset of the lengths or None) */
static PyObject *field_place(PyObject *object, const rp_field_view *field)
{
    PyObject *shape = PyTuple_New(field->rank);
    for (uint32_t i = 0; shape && i < field->rank; i++)
        core_set(&shape, i, PyLong_FromUnsignedLongLong(field->shape[i]));
    PyObject *lengths =
        field->lengths ? PyLong_FromUnsignedLongLong(offset_of(object, field->lengths)) : Py_NewRef(Py_None);
    return Py_BuildValue("(NKKNN)", field_dtype(object, field), offset_of(object, field->data), field->bytes, shape,
                         lengths);
}

/* A tuple of what the function makes of each field. */
static PyObject *of_fields(PyObject *object, field_fn *make)
{
    const memory_object *memory = memory_of(object);
    PyObject *out = PyTuple_New(memory->info.n_fields);
    for (uint32_t i = 0; out && i < memory->info.n_fields; i++)
        core_set(&out, i, make(object, rp_batch_field(memory->batch, i)));
    return out;
}

#define OF_FIELDS(method, make)                                                                                        \
    static PyObject *method(PyObject *object, PyObject *unused)                                                        \
    {                                                                                                                  \
        (void)unused;                                                                                                  \
        return of_fields(object, make);                                                                                \
    }
OF_FIELDS(batch_names, field_name)
OF_FIELDS(batch_fields, field_data)
OF_FIELDS(batch_lengths, field_lengths)
OF_FIELDS(batch_squeezes, field_squeezed)
OF_FIELDS(batch_places, field_place)

/* ---- the block, and one value per item */

/* The offsets of the arrays, in the order of the table; None: the batch has no such array. */
static PyObject *batch_array_places(PyObject *object, PyObject *unused)
{
    (void)unused;
    PyObject *out = PyTuple_New(N_ARRAYS);
    for (size_t i = 0; out && i < N_ARRAYS; i++) {
        const void *data = data_of(object, &arrays[i]);
        core_set(&out, i, data ? PyLong_FromUnsignedLongLong(offset_of(object, data)) : Py_NewRef(Py_None));
    }
    return out;
}

static PyObject *batch_block(PyObject *object, PyObject *unused)
{
    (void)unused;
    const rp_batch_info *info = &memory_of(object)->info;
    return view_of(object, info->memory, RP_DTYPE_UINT8, info->bytes);
}

static PyObject *batch_array(PyObject *object, void *closure)
{
    const struct array *array = closure;
    PyObject **place = &((batch_object *)object)->arrays[array - arrays];
    const void *data = data_of(object, array);
    if (!*place)
        *place = !data && array->optional ? Py_NewRef(Py_None)
                                          : view_of(object, data, array->dtype, memory_of(object)->info.n);
    return Py_XNewRef(*place);
}

static PyObject *batch_nodes(PyObject *object, void *unused)
{
    (void)unused;
    return Py_NewRef(((batch_object *)object)->nodes);
}

static PyObject *batch_info(PyObject *object, PyObject *unused)
{
    (void)unused;
    const rp_batch_info *info = &memory_of(object)->info;
    return Py_BuildValue("{s:I,s:O,s:K,s:K,s:s}", "n", info->n, "partial", info->partial ? Py_True : Py_False,
                         "table_size", info->table_size, "waited_ns", info->waited_ns, "text",
                         rp_batch_text(memory_of(object)->batch));
}

static Py_ssize_t batch_length(PyObject *object)
{
    return (Py_ssize_t)memory_of(object)->info.n;
}

static PyMethodDef methods[] = {
    {"names", batch_names, METH_NOARGS, "The names of the fields."},
    {"fields", batch_fields, METH_NOARGS, "The memory of each field."},
    {"field_lengths", batch_lengths, METH_NOARGS,
     "For each field, how many steps of each item are real; None: all, or it has no steps."},
    {"block", batch_block, METH_NOARGS, "The memory of all arrays and fields, as bytes."},
    {"places", batch_places, METH_NOARGS,
     "For each field where the block has it: (dtype, offset, bytes, shape, offset of the lengths or None)."},
    {"squeezes", batch_squeezes, METH_NOARGS,
     "For each field, whether its items have one row and no dimension of steps."},
    {"array_places", batch_array_places, METH_NOARGS,
     "Where the block has the arrays of ARRAYS; None: the batch has no such array."},
    {"_info", batch_info, METH_NOARGS, "A dict: n, partial, table_size, waited_ns, text."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[N_ARRAYS + 2] = {[N_ARRAYS] = {.name = "_nodes", .get = batch_nodes}};

static bool begin_batch(PyObject *module)
{
    for (size_t i = 0; i < N_ARRAYS; i++)
        getters[i] = (PyGetSetDef){arrays[i].name, batch_array, NULL, arrays[i].doc, (void *)(uintptr_t)&arrays[i]};
    PyObject *names = PyTuple_New(N_ARRAYS);
    for (size_t i = 0; names && i < N_ARRAYS; i++)
        core_set(&names, i, Py_BuildValue("(ss)", arrays[i].name, dtype_name(arrays[i].dtype)));
    bool ok = names && PyModule_AddObjectRef(module, "ARRAYS", names) == 0;
    Py_XDECREF(names);
    return ok;
}

const struct core_type memory_core = {
    .name = "replaybus._core.Memory",
    .doc = "The memory of a batch.",
    .size = sizeof(memory_object),
    .dealloc = memory_dealloc,
    .out = &memory_type,
};
const struct core_type batch_core = {
    .name = "replaybus._core.Batch",
    .doc = "Batch(memory, nodes): items that were sampled.",
    .size = sizeof(batch_object),
    .begin = begin_batch,
    .make = batch_make,
    .dealloc = batch_dealloc,
    .methods = methods,
    .getters = getters,
    .length = batch_length,
    .is_base = true,
};
