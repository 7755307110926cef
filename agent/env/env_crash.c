/* Names the environment in which a plug-in has crashed: the signal ends the process, and the launcher shows its last lines. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "agent/env/env.h"

/* The plug-in that this thread runs, for the handler. */
static _Thread_local struct {
    const struct env *env; /* NULL: none */
    const char *function;
} inside;

static void say(const char *text)
{
    ssize_t done = write(STDERR_FILENO, text, strlen(text));
    (void)done;
}

/* Uses nothing but write. The signal's own action comes next. */
static void on_crash(int number)
{
    char digits[16];
    char *at = digits + sizeof digits - 1;
    if (inside.env) {
        *at = '\0';
        for (uint32_t left = inside.env->steps + 1; left; left /= 10)
            *--at = (char)('0' + left % 10);
        bool step = strcmp(inside.function, "step") == 0;
        say("environment '");
        say(inside.env->ops->name);
        say("': the plug-in has crashed in ");
        say(inside.function);
        say(step ? " " : "");
        say(step ? at : "");
        say(step ? " of the episode\n" : "\n");
    }
    raise(number);
}

void env_watch_crashes(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (uint32_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND}, before;
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
    }
}

void env_enter(const struct env *self, const char *function)
{
    inside.function = function;
    inside.env = self->library ? self : NULL;
}

void env_leave(void)
{
    inside.env = NULL;
}
