/* A file whose bytes name CUDA or NVML, as a needed library or in a string, is loaded without the flag, so its very
 * first constructor already finds our functions. All other files keep the flag. Once such a file is loaded, its
 * calls to dlsym and dlopen are redirected to ours, for names that it looks up later. */
#define _GNU_SOURCE
#include "driver/deepbind.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/driver.h"
#include "driver/needed.h"

#define MAX_LOADED 1024u

#if defined(__aarch64__)
enum { SLOT_OF_CALL = R_AARCH64_JUMP_SLOT, SLOT_OF_ADDRESS = R_AARCH64_GLOB_DAT };
#else
enum { SLOT_OF_CALL = R_X86_64_JUMP_SLOT, SLOT_OF_ADDRESS = R_X86_64_GLOB_DAT };
#endif

/* The objects loaded before the call, and the functions for those loaded by it. */
typedef struct {
    const replaced_t *replaced;
    ElfW(Addr) at[MAX_LOADED];
    unsigned count;
} snapshot_t;

static int record_loaded(struct dl_phdr_info *object, size_t size, void *data) {
    snapshot_t *loaded = data;
    (void)size;
    if (loaded->count == MAX_LOADED)
        return 1;
    loaded->at[loaded->count++] = object->dlpi_addr;
    return 0;
}

/* Return our replacement, or NULL. CUDA's functions are not replaced: the file names no library that has them, and
 * may define functions of the same name. */
static void *replacement_of(const char *name, const replaced_t *replaced) {
    if (strcmp(name, "dlsym") == 0)
        return replaced->dlsym;
    return strcmp(name, "dlopen") == 0 ? replaced->dlopen : NULL;
}

/* Whether the loader has made this page read-only (RELRO covers whole pages). */
static bool is_sealed(const struct dl_phdr_info *object, uintptr_t at, uintptr_t page) {
    for (unsigned i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t begin = object->dlpi_addr + segment->p_vaddr, end = begin + segment->p_memsz;
        if (segment->p_type == PT_GNU_RELRO && at >= (begin & ~(page - 1)) && at + page <= (end & ~(page - 1)))
            return true;
    }
    return false;
}

static void set_slot(const struct dl_phdr_info *object, void **slot, void *function) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot & ~(page - 1);
    bool sealed = is_sealed(object, at, page);
    if (sealed && mprotect((void *)at, page, PROT_READ | PROT_WRITE) != 0)
        return;
    __atomic_store_n(slot, function, __ATOMIC_RELEASE);
    if (sealed)
        (void)mprotect((void *)at, page, PROT_READ);
}

static void redirect_slots(const struct dl_phdr_info *object, const ElfW(Rela) * slots, size_t bytes,
                           const ElfW(Sym) * symbols, const char *strings, const replaced_t *replaced) {
    for (size_t i = 0; slots != NULL && i < bytes / sizeof *slots; i++) {
        unsigned type = (unsigned)ELF64_R_TYPE(slots[i].r_info);
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(slots[i].r_info)];
        if ((type != SLOT_OF_CALL && type != SLOT_OF_ADDRESS) || symbol->st_shndx != SHN_UNDEF)
            continue;
        void *function = replacement_of(strings + symbol->st_name, replaced);
        if (function != NULL)
            set_slot(object, (void **)(object->dlpi_addr + slots[i].r_offset), function);
    }
}

static const void *address(const struct dl_phdr_info *object, const ElfW(Dyn) * entries, ElfW(Sxword) tag) {
    for (; entries->d_tag != DT_NULL; entries++) {
        if (entries->d_tag == tag)
            return (const void *)(entries->d_un.d_ptr +
                                  (entries->d_un.d_ptr < object->dlpi_addr ? object->dlpi_addr : 0));
    }
    return NULL;
}

static size_t number(const ElfW(Dyn) * entries, ElfW(Sxword) tag) {
    while (entries->d_tag != DT_NULL && entries->d_tag != tag)
        entries++;
    return entries->d_tag == tag ? entries->d_un.d_val : 0;
}

/* Redirect the calls of an object that has just been loaded. */
static int redirect_new(struct dl_phdr_info *object, size_t size, void *data) {
    const snapshot_t *loaded = data;
    const ElfW(Dyn) *entries = NULL;
    (void)size;
    for (unsigned i = 0; i < loaded->count; i++) {
        if (loaded->at[i] == object->dlpi_addr)
            return 0;
    }
    for (unsigned i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entries = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    }
    const ElfW(Sym) *symbols = entries != NULL ? address(object, entries, DT_SYMTAB) : NULL;
    const char *strings = entries != NULL ? address(object, entries, DT_STRTAB) : NULL;
    if (symbols == NULL || strings == NULL)
        return 0;
    redirect_slots(object, address(object, entries, DT_JMPREL), number(entries, DT_PLTRELSZ), symbols, strings,
                   loaded->replaced);
    redirect_slots(object, address(object, entries, DT_RELA), number(entries, DT_RELASZ), symbols, strings,
                   loaded->replaced);
    return 0;
}

/* File names without a directory are excluded: the search depends on the caller's RUNPATH, and here the caller would
 * be us. */
bool deepbind_open(const char *file, int mode, void **answer_p, const replaced_t *replaced) {
    snapshot_t loaded = {.replaced = replaced};
    if (file == NULL || strchr(file, '/') == NULL || strchr(file, '$') != NULL || needed_may_use_cuda(file) ||
        dl_iterate_phdr(record_loaded, &loaded) != 0)
        return false;
    *answer_p = driver_open(file, mode);
    if (*answer_p != NULL)
        (void)dl_iterate_phdr(redirect_new, &loaded);
    return true;
}
