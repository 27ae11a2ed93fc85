#define _GNU_SOURCE
#include "driver/loaded.h"

#include <link.h>
#include <string.h>

typedef struct {
    uintptr_t at; /* an address in the library */
    loaded_t found;
} search_t;

static bool contains(const struct dl_phdr_info *object, uintptr_t at) {
    for (unsigned i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t begin = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && at >= begin && at < begin + segment->p_memsz)
            return true;
    }
    return false;
}

static int visit(struct dl_phdr_info *object, size_t size, void *data) {
    search_t *search = data;
    (void)size;
    search->found.unloads = object->dlpi_subs;
    if (!contains(object, search->at))
        return 0;
    search->found.base = object->dlpi_addr;
    if (strlen(object->dlpi_name) < sizeof search->found.file)
        (void)strcpy(search->found.file, object->dlpi_name);
    return 1;
}

static int count(struct dl_phdr_info *object, size_t size, void *data) {
    (void)size;
    *(unsigned long long *)data = object->dlpi_subs;
    return 1;
}

void loaded_containing(const void *function, loaded_t *found) {
    search_t search = {.at = (uintptr_t)function};
    if (function != NULL)
        (void)dl_iterate_phdr(visit, &search);
    *found = search.found;
}

/* A different library may now be at the same address. */
bool loaded_is_present(loaded_t *library) {
    unsigned long long unloads = 0;
    (void)dl_iterate_phdr(count, &unloads);
    if (library->base == 0 || unloads == library->unloads)
        return true;
    search_t search = {.at = library->base};
    (void)dl_iterate_phdr(visit, &search);
    library->unloads = unloads;
    return search.found.base == library->base && strcmp(search.found.file, library->file) == 0;
}
