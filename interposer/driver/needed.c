/* Needed libraries are searched for as the loader does: among the loaded ones, in the RUNPATH of the file that needs
 * them, and in the loader's cache. For a library that is in none of these, for instance one that only
 * LD_LIBRARY_PATH leads to, there is no answer. */
#define _GNU_SOURCE
#include "driver/needed.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_FILES 64u
#define MAX_PATH_BYTES 1024u
#define ORIGIN "$ORIGIN"
#define CACHE_HEADER_BYTES 48u
#define CACHE_MACHINE 0xff00u
#if defined(__aarch64__)
#    define CACHE_THIS_MACHINE 0x0a00u
#else
#    define CACHE_THIS_MACHINE 0x0300u
#endif

/* The files that would be loaded. */
typedef struct {
    char paths[MAX_FILES][MAX_PATH_BYTES];
    unsigned count;
} files_t;

/* A mapped ELF file. */
typedef struct {
    const char *bytes;
    size_t size;
    const ElfW(Phdr) * headers;
    unsigned count;
} image_t;

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static const char *map_file(const char *path, size_t *size_p) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = descriptor >= 0 ? lseek(descriptor, 0, SEEK_END) : -1;
    void *bytes = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
    if (descriptor >= 0)
        close(descriptor);
    *size_p = (size_t)size;
    return bytes != MAP_FAILED ? bytes : NULL;
}

static bool map_image(const char *path, image_t *image) {
    size_t size;
    const char *bytes = map_file(path, &size);
    if (bytes == NULL)
        return false;
    const ElfW(Ehdr) *header = (const void *)bytes;
    if (size >= sizeof *header && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
        header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_phentsize == sizeof(ElfW(Phdr)) &&
        header->e_phoff % _Alignof(ElfW(Phdr)) == 0 && header->e_phoff < size &&
        header->e_phnum <= (size - header->e_phoff) / sizeof(ElfW(Phdr))) {
        *image = (image_t){bytes, size, (const void *)(bytes + header->e_phoff), header->e_phnum};
        return true;
    }
    munmap((void *)bytes, size);
    return false;
}

/* Return a part of the file, or NULL if the file is too short. */
static const char *part(const image_t *image, uint64_t offset, uint64_t size) {
    return offset <= image->size && size <= image->size - offset ? image->bytes + offset : NULL;
}

static bool names_cuda(const image_t *image) {
    static const char *const names[] = {"libcuda", "libnvidia-ml"};
    for (unsigned i = 0; i < image->count; i++) {
        const ElfW(Phdr) *segment = &image->headers[i];
        if (segment->p_type != PT_LOAD)
            continue;
        const char *bytes = part(image, segment->p_offset, segment->p_filesz);
        for (unsigned name = 0; name < sizeof names / sizeof *names; name++) {
            if (bytes == NULL || memmem(bytes, segment->p_filesz, names[name], strlen(names[name])) != NULL)
                return true;
        }
    }
    return false;
}

/* Return the string, or NULL if it does not end within these bytes. */
static const char *string_in(const char *bytes, size_t size, uint64_t offset) {
    return offset < size && memchr(bytes + offset, '\0', size - offset) != NULL ? bytes + offset : NULL;
}

/* Return a string of the dynamic string table, or NULL. */
static const char *string_at(const image_t *image, uint64_t table, uint64_t offset) {
    for (unsigned i = 0; i < image->count; i++) {
        const ElfW(Phdr) *segment = &image->headers[i];
        if (segment->p_type == PT_LOAD && table - segment->p_vaddr < segment->p_filesz)
            return string_in(image->bytes, image->size, segment->p_offset + (table - segment->p_vaddr) + offset);
    }
    return NULL;
}

static int is_named(struct dl_phdr_info *object, size_t size, void *name) {
    (void)size;
    return strcmp(last_part(object->dlpi_name), name) == 0;
}

static bool add_path(files_t *files, const char *path) {
    size_t length = strlen(path);
    if (files->count == MAX_FILES || length >= MAX_PATH_BYTES)
        return false;
    memcpy(files->paths[files->count++], path, length + 1);
    return true;
}

static bool is_added(const files_t *files, const char *name) {
    for (unsigned i = 0; i < files->count; i++) {
        if (strcmp(last_part(files->paths[i]), name) == 0)
            return true;
    }
    return false;
}

/* Add every file that the loader's cache has for this library and machine. The loader chooses among them by
 * processor. The format is a magic word, a header and entries whose strings are offsets from the magic word (glibc,
 * sysdeps/generic/dl-cache.h). */
static bool add_from_cache(files_t *files, const char *name) {
    static const char magic[] = "glibc-ld.so.cache1.1";
    typedef struct {
        uint32_t flags, key, value, osversion;
        uint64_t hwcap;
    } cached_t;
    size_t size;
    bool found = false, fits = true;
    const char *bytes = map_file("/etc/ld.so.cache", &size);
    const char *cache = bytes != NULL ? memmem(bytes, size, magic, sizeof magic - 1) : NULL;
    size_t left = cache != NULL ? size - (size_t)(cache - bytes) : 0;
    uint32_t count = left >= CACHE_HEADER_BYTES ? *(const uint32_t *)(cache + sizeof magic - 1) : 0;
    for (uint32_t i = 0; i < count && fits && CACHE_HEADER_BYTES + (i + 1) * sizeof(cached_t) <= left; i++) {
        const cached_t *cached = (const void *)(cache + CACHE_HEADER_BYTES + i * sizeof(cached_t));
        const char *key = string_in(cache, left, cached->key), *value = string_in(cache, left, cached->value);
        if ((cached->flags & CACHE_MACHINE) != CACHE_THIS_MACHINE || key == NULL || value == NULL ||
            strcmp(key, name) != 0)
            continue;
        found = true;
        fits = add_path(files, value);
    }
    if (bytes != NULL)
        munmap((void *)bytes, size);
    return found && fits;
}

/* Add the library if it is in a directory of the RUNPATH of the file `self`. */
static bool add_from_runpath(files_t *files, const char *self, const char *directories, const char *name) {
    char path[MAX_PATH_BYTES];
    while (directories != NULL && *directories != '\0') {
        size_t length = strcspn(directories, ":");
        bool here = strncmp(directories, ORIGIN, strlen(ORIGIN)) == 0;
        const char *rest = directories + (here ? strlen(ORIGIN) : 0);
        int origin = here ? (int)(last_part(self) - self) : 0;
        int used =
            snprintf(path, sizeof path, "%.*s%.*s/%s", origin, self, (int)(directories + length - rest), rest, name);
        if (length > 0 && used > 0 && used < (int)sizeof path && access(path, R_OK) == 0)
            return add_path(files, path);
        directories += length + (directories[length] == ':');
    }
    return false;
}

/* Add the libraries that the file needs and that are not loaded. Returns false if it names CUDA, or if that cannot
 * be decided. */
static bool scan_file(files_t *files, unsigned index) {
    image_t image;
    if (!map_image(files->paths[index], &image))
        return false;
    const ElfW(Dyn) *entries = NULL;
    uint64_t entry_count = 0, strings = 0;
    const char *directories = NULL;
    for (unsigned i = 0; i < image.count; i++) {
        if (image.headers[i].p_type == PT_DYNAMIC) {
            bool aligned = image.headers[i].p_offset % _Alignof(ElfW(Dyn)) == 0;
            entries = aligned ? (const void *)part(&image, image.headers[i].p_offset, image.headers[i].p_filesz) : NULL;
            entry_count = image.headers[i].p_filesz / sizeof *entries;
        }
    }
    for (uint64_t i = 0; entries != NULL && i < entry_count; i++)
        strings = entries[i].d_tag == DT_STRTAB ? entries[i].d_un.d_ptr : strings;
    for (uint64_t i = 0; entries != NULL && i < entry_count; i++) {
        if (entries[i].d_tag == DT_RUNPATH || entries[i].d_tag == DT_RPATH)
            directories = string_at(&image, strings, entries[i].d_un.d_val);
    }
    bool harmless = entries != NULL && !names_cuda(&image);
    for (uint64_t i = 0; harmless && i < entry_count; i++) {
        if (entries[i].d_tag != DT_NEEDED)
            continue;
        const char *name = string_at(&image, strings, entries[i].d_un.d_val);
        harmless = name != NULL &&
                   (dl_iterate_phdr(is_named, (void *)name) != 0 || is_added(files, name) ||
                    add_from_runpath(files, files->paths[index], directories, name) || add_from_cache(files, name));
    }
    munmap((void *)image.bytes, image.size);
    return harmless;
}

/* The list is mapped separately because the thread's stack may be small. */
bool needed_may_use_cuda(const char *file) {
    files_t *files = mmap(NULL, sizeof *files, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (files == MAP_FAILED)
        return true;
    bool harmless = add_path(files, file);
    for (unsigned i = 0; harmless && i < files->count; i++)
        harmless = scan_file(files, i);
    munmap(files, sizeof *files);
    return !harmless;
}
