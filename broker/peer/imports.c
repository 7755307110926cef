#include "broker/peer/imports.h"

#include <link.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zmq.h>

struct imports {
    const struct import *rows;
    uint32_t n;
};

static void *address_in(const struct dl_phdr_info *object, uintptr_t at)
{
    return (void *)(at < object->dlpi_addr ? object->dlpi_addr + at : at);
}

/* Lets an entry of an object's table of imported functions point to another function. */
static void import_set(const struct dl_phdr_info *object, const ElfW(Rela) * entry, void (*function)(void))
{
    uintptr_t at = object->dlpi_addr + entry->r_offset, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    bool constant = false; /* the loader has made it so */
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t end = (object->dlpi_addr + part->p_vaddr + part->p_memsz) & ~(page - 1);
        constant |= part->p_type == PT_GNU_RELRO && entry->r_offset - part->p_vaddr < part->p_memsz && at < end;
    }
    void *start = (void *)(at & ~(page - 1));
    if (constant && mprotect(start, page, PROT_READ | PROT_WRITE) != 0)
        return;
    __atomic_store_n((uintptr_t *)at, (uintptr_t)function, __ATOMIC_RELEASE);
    if (constant)
        mprotect(start, page, PROT_READ);
}

static void imports_set(const struct dl_phdr_info *object, const ElfW(Dyn) * at, const struct imports *imports)
{
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const ElfW(Rela) * lists[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    for (; at->d_tag != DT_NULL; at++)
        switch (at->d_tag) {
        case DT_SYMTAB:
            symbols = address_in(object, at->d_un.d_ptr);
            break;
        case DT_STRTAB:
            names = address_in(object, at->d_un.d_ptr);
            break;
        case DT_JMPREL:
            lists[0] = address_in(object, at->d_un.d_ptr);
            break;
        case DT_PLTRELSZ:
            bytes[0] = at->d_un.d_val;
            break;
        case DT_RELA:
            lists[1] = address_in(object, at->d_un.d_ptr);
            break;
        case DT_RELASZ:
            bytes[1] = at->d_un.d_val;
            break;
        default:
            break;
        }
    for (uint32_t k = 0; k < 2 && symbols && names; k++)
        for (size_t i = 0; lists[k] && i < bytes[k] / sizeof(ElfW(Rela)); i++) {
            const char *name = names + symbols[ELF64_R_SYM(lists[k][i].r_info)].st_name;
            for (uint32_t j = 0; j < imports->n; j++)
                if (strcmp(name, imports->rows[j].name) == 0)
                    import_set(object, &lists[k][i], imports->rows[j].function);
        }
}

/* Of all objects in the process, finds the one with libzmq. */
static int object_visit(struct dl_phdr_info *object, size_t size, void *ctx)
{
    (void)size;
    bool found = false;
    const ElfW(Dyn) *dynamic = NULL;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        found |= part->p_type == PT_LOAD && (uintptr_t)zmq_bind - object->dlpi_addr - part->p_vaddr < part->p_memsz;
        if (part->p_type == PT_DYNAMIC)
            dynamic = (const void *)(object->dlpi_addr + part->p_vaddr);
    }
    if (found && dynamic)
        imports_set(object, dynamic, ctx);
    return found;
}

void imports_replace(const struct import *rows, uint32_t n)
{
    struct imports imports = {rows, n};
    dl_iterate_phdr(object_visit, &imports);
}
