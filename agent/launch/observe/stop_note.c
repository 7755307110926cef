#include "agent/launch/observe/stop_note.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/launch/observe/run_folder.h"

#define NOTE "launch.stop"

void stop_note_leave(const char *folder, const char *who)
{
    run_folder_write(folder, NOTE, who, NULL);
}

void stop_note_drop(const char *folder)
{
    run_folder_remove(folder, NOTE);
}

const char *stop_asker(const char *folder, const struct interrupts *interrupts, char *out, size_t size)
{
    char *note =
        interrupts->last == SIGTERM ? run_folder_read(folder, NOTE) : NULL; /* only SIGTERM comes with a note */
    stop_note_drop(folder);
    if (note && note[0])
        snprintf(out, size, "%.*s", (int)strcspn(note, "\r\n"), note);
    else
        interrupts_describe(interrupts, out, size);
    free(note);
    return out;
}
