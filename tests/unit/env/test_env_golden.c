/* The built-in environments against traces that an independent script wrote from the published equations
 * (tests/golden/env_traces.py). A file has the name of its environment. */

#include <dirent.h>

#include "agent/env/env.h"
#include "tests/support/process.h"

#define MOST_NUMBERS 1024

struct trace {
    char path[1024];
    char name[128];
    uint32_t line, cases, steps;
    double tolerance;
    const rp_env_ops *ops;
    rp_env_spec spec;
    void *env;
    bool begun, ended; /* the case that is under way */
    void *observation;
};

#define bad(trace, ...)                                                                                                \
    do {                                                                                                               \
        print_error("%s:%u: ", (trace)->path, (trace)->line);                                                          \
        fail_msg(__VA_ARGS__);                                                                                         \
    } while (0)

static const char *folder(void)
{
    static char path[900];
    snprintf(path, sizeof path, "%s/tests/golden/env", process_env("RP_SOURCE_DIR"));
    return path;
}

static const rp_env_ops *builtin(const char *name)
{
    for (const rp_env_ops *const *at = env_builtin; *at; at++)
        if (strcmp((*at)->name, name) == 0)
            return *at;
    return NULL;
}

/* Reads numbers up to the end or a '|'. Gives how many, and where the text goes on (NULL: at its end). */
static uint32_t read_numbers(const struct trace *trace, const char *text, double *out, const char **rest)
{
    uint32_t n = 0;
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (*text == '\0' || *text == '|') {
            *rest = *text ? text + 1 : NULL;
            return n;
        }
        char *end;
        double value = strtod(text, &end);
        if (end == text || n == MOST_NUMBERS)
            bad(trace, "cannot read '%.40s'", text);
        out[n++] = value;
        text = end;
    }
}

/* Reads an observation: its numbers, or after a '@' the places of those that are 1 where all others are 0. */
static uint32_t read_observation(const struct trace *trace, const char *text, double *out, const char **rest)
{
    text += strspn(text, " ");
    if (*text != '@')
        return read_numbers(trace, text, out, rest);
    double places[MOST_NUMBERS];
    uint32_t n = (uint32_t)env_observation_count(&trace->spec), n_ones = read_numbers(trace, text + 1, places, rest);
    assert_true(n <= MOST_NUMBERS);
    for (uint32_t i = 0; i < n; i++)
        out[i] = 0;
    for (uint32_t i = 0; i < n_ones; i++) {
        if (!(places[i] >= 0 && places[i] < n))
            bad(trace, "an observation has no number %g", places[i]);
        out[(uint32_t)places[i]] = 1;
    }
    return n;
}

static void compare(const struct trace *trace, const char *what, uint32_t i, double ours, double expected)
{
    if (!(fabs(ours - expected) <= trace->tolerance * (1 + fabs(expected))))
        bad(trace, "%s %u is %.9g, expected %.9g", what, i, ours, expected);
}

static void compare_observation(const struct trace *trace, const double *expected, uint32_t n)
{
    if (n != env_observation_count(&trace->spec))
        bad(trace, "%u numbers of an observation, the environment has %zu", n, env_observation_count(&trace->spec));
    for (uint32_t i = 0; i < n; i++) {
        double ours = trace->spec.observation_dtype == RP_DTYPE_FLOAT32 ? (double)((const float *)trace->observation)[i]
                                                                        : ((const uint8_t *)trace->observation)[i];
        compare(trace, "number", i, ours, expected[i]);
    }
}

static void take_state(struct trace *trace, const double *numbers, uint32_t n)
{
    /* So that a number that is not written shows. */
    memset(trace->observation, 0x55, env_observation_bytes(&trace->spec));
    trace->ops->seed(trace->env, 0);
    if (trace->ops->set_state(trace->env, numbers, n, trace->observation) != RP_OK)
        bad(trace, "the environment refuses this state of %u numbers", n);
    trace->begun = true;
    trace->ended = false;
}

static void take_step(struct trace *trace, const double *action, uint32_t n, const char *rest)
{
    double numbers[MOST_NUMBERS];
    union {
        int32_t discrete;
        float continuous[RP_ENV_MAX_ACTION];
    } native;
    uint32_t size = trace->spec.n_actions ? 1 : trace->spec.action_size;
    if (!trace->begun || trace->ended || n != size || !rest)
        bad(trace, "a step out of place, or with %u numbers as its action", n);
    if (trace->spec.n_actions)
        native.discrete = (int32_t)action[0];
    for (uint32_t i = 0; i < trace->spec.action_size; i++)
        native.continuous[i] = (float)action[i];
    rp_env_result result = {0};
    memset(trace->observation, 0x55, env_observation_bytes(&trace->spec));
    trace->ops->step(trace->env, &native, trace->observation, &result);
    compare_observation(trace, numbers, read_observation(trace, rest, numbers, &rest));
    if (!rest || read_numbers(trace, rest, numbers, &rest) != 2)
        bad(trace, "a step ends with reward and terminal");
    compare(trace, "reward", 0, (double)result.reward, numbers[0]);
    if (result.terminal != (numbers[1] != 0))
        bad(trace, "terminal is %d, expected %d", result.terminal, numbers[1] != 0);
    assert_false(result.terminal && result.truncated);
    trace->ended = result.terminal;
    trace->steps++;
}

static void take_line(struct trace *trace, const char *line)
{
    double numbers[MOST_NUMBERS];
    char word[16];
    int used = 0;
    const char *rest;
    if (sscanf(line, "%15s%n", word, &used) != 1 || word[0] == '#')
        return;
    uint32_t n = read_observation(trace, line + used, numbers, &rest);
    if (strcmp(word, "tolerance") == 0 && n == 1) {
        trace->tolerance = numbers[0];
    } else if (strcmp(word, "case") == 0 && n == 1) {
        trace->begun = false;
        trace->cases++;
    } else if (strcmp(word, "state") == 0) {
        take_state(trace, numbers, n);
    } else if (strcmp(word, "start") == 0 && trace->begun) {
        compare_observation(trace, numbers, n);
    } else if (strcmp(word, "step") == 0) {
        take_step(trace, numbers, n, rest);
    } else {
        bad(trace, "what is '%s'?", word);
    }
}

static void open_env(struct trace *trace)
{
    static const rp_option not_sticky = {.name = "sticky", .value = "0"};
    trace->ops = builtin(trace->name);
    if (!trace->ops || !trace->ops->set_state)
        bad(trace, "no built-in environment '%s' that can be put into a state", trace->name);
    trace->env = trace->ops->create(&not_sticky, 1, &trace->spec, &err);
    if (!trace->env) /* has no such option */
        trace->env = trace->ops->create(NULL, 0, &trace->spec, &err);
    if (!trace->env)
        bad(trace, "%s", err.text);
    trace->observation = malloc(env_observation_bytes(&trace->spec));
    assert_non_null(trace->observation);
}

static void check_file(const char *name)
{
    struct trace trace = {.tolerance = NAN};
    snprintf(trace.path, sizeof trace.path, "%s/%s", folder(), name);
    snprintf(trace.name, sizeof trace.name, "%.*s", (int)(strlen(name) - strlen(".txt")), name);
    FILE *file = fopen(trace.path, "r");
    if (!file)
        bad(&trace, "cannot be read");
    open_env(&trace);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) > 0) {
        trace.line++;
        take_line(&trace, line);
    }
    free(line);
    fclose(file);
    trace.ops->destroy(trace.env);
    free(trace.observation);
    print_message("%s: %u cases, %u steps, within %g\n", trace.name, trace.cases, trace.steps, trace.tolerance);
    assert_true(trace.cases >= 1 && trace.steps >= 10);
}

TEST(every_trace_is_followed)
{
    DIR *dir = opendir(folder());
    assert_non_null(dir);
    uint32_t files = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot && dot != entry->d_name && strcmp(dot, ".txt") == 0) {
            check_file(entry->d_name);
            files++;
        }
    }
    closedir(dir);
    assert_true(files > 0);
}

TEST(every_environment_has_a_trace)
{
    for (const rp_env_ops *const *at = env_builtin; *at; at++) {
        /* Its contacts are the solver of the MuJoCo library: there are no equations to write a trace from. */
        if (!(*at)->set_state || strcmp((*at)->name, "Cheetah") == 0)
            continue;
        char path[1024];
        snprintf(path, sizeof path, "%s/%s.txt", folder(), (*at)->name);
        FILE *file = fopen(path, "r");
        if (!file)
            fail_msg("%s is missing: run tests/golden/env_traces.py", path);
        fclose(file);
    }
}
