/* The programs of the agents inside Python. */
#include <stdlib.h>
#include <string.h>

#include "agent/python/agent/agent.h"
#include "agent/python/agent/provider.h"
#include "agent/run/program.h"

/* Copies a list of str; NULL-terminated. NULL with an exception set. */
static char **copy_words(PyObject *list, int *n)
{
    Py_ssize_t count = PyList_Size(list);
    char **words = count >= 0 ? calloc((size_t)count + 1, sizeof *words) : NULL;
    if (count >= 0 && !words)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; words && i < count; i++) {
        const char *text = core_text(PyList_GetItem(list, i), "an argument");
        words[i] = text ? strdup(text) : NULL;
    }
    *n = (int)count;
    return words;
}

static void free_words(char **words)
{
    for (char **word = words; word && *word; word++)
        free(*word);
    free(words);
}

static PyObject *run(PyObject *args, enum program_kind kind, const char *name)
{
    PyObject *list, *open;
    struct python_provider provider;
    int n = 0;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &list, &open))
        return NULL;
    char **words = copy_words(list, &n);
    if (!words || PyErr_Occurred()) {
        free_words(words);
        return NULL;
    }
    python_provider_init(&provider, open);
    char **given = calloc((size_t)n + 1, sizeof *given); /* getopt moves words */
    if (given)
        memcpy(given, words, (size_t)n * sizeof *given);
    provider.thread = PyEval_SaveThread();
    int status = given ? program_run(kind, name, &provider.provider, n, given) : EXIT_FAILED;
    PyEval_RestoreThread(provider.thread);
    free(given);
    free_words(words);
    return PyLong_FromLong(status);
}

PyObject *program_run_actor(PyObject *module, PyObject *args)
{
    (void)module;
    return run(args, PROGRAM_ACTOR, "replaybus.actor");
}

PyObject *program_run_single(PyObject *module, PyObject *args)
{
    (void)module;
    return run(args, PROGRAM_SINGLE, "replaybus.single");
}
