/* Who asks a run to end. A signal cannot say that, so whoever sends one leaves a note in the run's folder first. */
#ifndef AGENT_LAUNCH_STOP_NOTE_H
#define AGENT_LAUNCH_STOP_NOTE_H

#include <stddef.h>

#include "agent/launch/process/interrupts.h"

#define STOP_ASKER 256u

/* Leaves a note with what asks for the end: "replay-launch stop", "the page". A folder that cannot be written costs only the note. */
void stop_note_leave(const char *folder, const char *who);
/* Removes a note that nobody took. */
void stop_note_drop(const char *folder);
/* Takes the note, or describes the signal if there is none. Gives out. */
const char *stop_asker(const char *folder, const struct interrupts *interrupts, char *out, size_t size);

#endif
