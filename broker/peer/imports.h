/* Functions of the C library that libzmq calls, replaced by ours in libzmq's own table of imported functions. A definition of
 * such a function in a library would not reach libzmq where a program has loaded that library at run time, as Python does, and
 * would change the calls of the program itself. */
#ifndef BROKER_IMPORTS_H
#define BROKER_IMPORTS_H

#include <stdint.h>

struct import {
    const char *name;
    void (*function)(void); /* of the type that the name has */
};

/* Where libzmq is linked statically, nothing is replaced. */
void imports_replace(const struct import *rows, uint32_t n);

#endif
