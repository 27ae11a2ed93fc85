/* Finds libc's own dlsym without calling any function that could be replaced. Other preloaded libraries and this one
 * replace dlsym and dlvsym, and a sanitizer's functions must not run before its constructor. So this file reads the
 * loader's list of objects, as debuggers do, and the tables that the loader searches. */
#define _GNU_SOURCE
#include "driver/libc.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

typedef struct {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *hashes;
} tables_t;

/* On most machines the loader turns these offsets into addresses, but not on all. */
static const void *address(const struct link_map *object, ElfW(Addr) value) {
    return (const void *)(value < object->l_addr ? value + object->l_addr : value);
}

static tables_t tables_of(const struct link_map *object) {
    tables_t tables = {NULL, NULL, NULL};
    for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            tables.symbols = address(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_STRTAB)
            tables.strings = address(object, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_GNU_HASH)
            tables.hashes = address(object, entry->d_un.d_ptr);
    }
    return tables;
}

static bool is_equal(const char *left, const char *right) {
    while (*left != '\0' && *left == *right)
        left++, right++;
    return *left == *right;
}

static uint32_t hash_of(const char *name) {
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The GNU hash table: number of buckets, first hashed symbol, size of the Bloom filter in words and its shift; then
 * the filter (not needed here), the buckets, and one hash per symbol, whose lowest bit ends a chain. */
static void *find(const struct link_map *object, const char *name, unsigned type) {
    tables_t tables = tables_of(object);
    if (tables.symbols == NULL || tables.strings == NULL || tables.hashes == NULL || tables.hashes[0] == 0)
        return NULL;
    uint32_t count = tables.hashes[0], first = tables.hashes[1], hash = hash_of(name);
    const uint32_t *buckets = tables.hashes + 4 + tables.hashes[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chains = buckets + count;
    uint32_t at = buckets[hash % count];
    if (at < first)
        return NULL;
    for (;; at++) {
        const ElfW(Sym) *symbol = &tables.symbols[at];
        if ((chains[at - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            ELF64_ST_TYPE(symbol->st_info) == type && is_equal(tables.strings + symbol->st_name, name))
            return (void *)(object->l_addr + symbol->st_value);
        if (chains[at - first] & 1)
            return NULL;
    }
}

static bool ends_in(const char *path, const char *file) {
    const char *last = path;
    for (const char *at = path; *at != '\0'; at++) {
        if (*at == '/')
            last = at + 1;
    }
    return is_equal(last, file);
}

static const ElfW(Dyn) * dynamic_in(const ElfW(Phdr) * headers, unsigned long count, ElfW(Addr) base) {
    for (unsigned long i = 0; i < count; i++) {
        if (headers[i].p_type == PT_DYNAMIC)
            return (const void *)(base + headers[i].p_vaddr);
    }
    return NULL;
}

/* Return the list of objects through the program's DT_DEBUG entry, which the loader fills in. */
static const struct r_debug *in_program(void) {
    const ElfW(Phdr) *headers = (const void *)getauxval(AT_PHDR);
    unsigned long count = headers != NULL ? getauxval(AT_PHNUM) : 0;
    ElfW(Addr) base = 0;
    for (unsigned long i = 0; i < count; i++) {
        if (headers[i].p_type == PT_PHDR)
            base = (ElfW(Addr))headers - headers[i].p_vaddr;
    }
    const ElfW(Dyn) *entry = dynamic_in(headers, count, base);
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_DEBUG)
            return (const void *)entry->d_un.d_ptr;
    }
    return NULL;
}

/* Return the loader's own copy, for programs without DT_DEBUG. */
static const struct r_debug *in_loader(void) {
    ElfW(Addr) base = getauxval(AT_BASE);
    const ElfW(Ehdr) *header = (const void *)base;
    if (header == NULL)
        return NULL;
    const ElfW(Dyn) *dynamic = dynamic_in((const void *)(base + header->e_phoff), header->e_phnum, base);
    const struct link_map loader = {.l_addr = base, .l_ld = (ElfW(Dyn) *)dynamic};
    return dynamic != NULL ? find(&loader, "_r_debug", STT_OBJECT) : NULL;
}

/* Return the first loaded object, which is the program. */
static const struct link_map *loaded(void) {
    const struct r_debug *list = in_program();
    if (list == NULL)
        list = in_loader();
    return list != NULL ? list->r_map : NULL;
}

/* Return the first object of that name. We cannot take the loader's lock, so another thread may unload an object
 * during the search. But objects loaded at program start, such as libc, come first in the list and are never
 * unloaded. */
static const struct link_map *find_object(const char *file) {
    const struct link_map *object = loaded();
    while (object != NULL && (object->l_name == NULL || !ends_in(object->l_name, file)))
        object = object->l_next;
    return object;
}

void *libc_function(const char *name) {
    const struct link_map *libc = find_object("libc.so.6");
    void *found = libc != NULL ? find(libc, name, STT_FUNC) : NULL;
    if (found != NULL)
        return found;
    const struct link_map *older = find_object("libdl.so.2"); /* before glibc 2.34 */
    return older != NULL ? find(older, name, STT_FUNC) : NULL;
}
