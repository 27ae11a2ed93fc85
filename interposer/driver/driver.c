#define _GNU_SOURCE
#include "driver/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "driver/libc.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#    error "the library is built for x86-64 and aarch64: other machines need their own symbols_*.S and launches_*.S"
#endif

typedef void *dlsym_t(void *handle, const char *symbol);
typedef void *dlopen_t(const char *file, int mode);

void *driver_next_dlsym;
void *driver_next_dlopen;

void *driver_functions[HOOK_COUNT];
static bool bound[LIBRARY_COUNT];

static const char *const names[LIBRARY_COUNT] = {
    [LIBRARY_CUDA] = "libcuda.so.1",
    [LIBRARY_NVML] = "libnvidia-ml.so.1",
};

static CUresult cuda_missing(void) {
    return CUDA_ERROR_NOT_FOUND;
}

static nvmlReturn_t nvml_missing(void) {
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* Looking for libc's twice finds the same. */
static void *real_dlsym(void *handle, const char *symbol) {
    static dlsym_t *found;
    dlsym_t *lookup = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
    if (lookup == NULL) {
        *(void **)&lookup = libc_function("dlsym");
        __atomic_store_n(&found, lookup, __ATOMIC_RELEASE);
    }
    return lookup != NULL ? lookup(handle, symbol) : NULL;
}

/* What comes after us, which may be another preloaded library's. Looked for by name alone: by version only those would
 * be found that give theirs one. */
void driver_chain(void) {
    if (__atomic_load_n(&driver_next_dlsym, __ATOMIC_ACQUIRE) != NULL)
        return;
    __atomic_store_n(&driver_next_dlopen, real_dlsym(RTLD_NEXT, "dlopen"), __ATOMIC_RELEASE);
    __atomic_store_n(&driver_next_dlsym, real_dlsym(RTLD_NEXT, "dlsym"), __ATOMIC_RELEASE);
}

void *driver_open(const char *file, int mode) {
    driver_chain();
    return driver_next_dlopen != NULL ? ((dlopen_t *)driver_next_dlopen)(file, mode) : NULL;
}

/* Whether a search there comes to us, as one by the program's own handle does, with a driver and without. */
static bool leads_to_us(void *handle, library_t library) {
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        const hook_row_t *row = &hook_rows[i];
        if (row->library == library && row->replacement != NULL && real_dlsym(handle, row->symbol) == row->replacement)
            return true;
    }
    return false;
}

/* The library as it is loaded in this process; failing that, where the application itself found it, which may be a
 * namespace of its own, but never ourselves: a hook that took itself for the driver's function would call itself for
 * ever. The reference that RTLD_NOLOAD takes is kept: the functions must not go away. */
static void bind(library_t library, void *found_in) {
    if (__atomic_load_n(&bound[library], __ATOMIC_ACQUIRE))
        return;
    driver_chain();
    void *handle =
        driver_next_dlopen != NULL ? ((dlopen_t *)driver_next_dlopen)(names[library], RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (handle == NULL && found_in != NULL && !leads_to_us(found_in, library))
        handle = found_in;
    if (handle == NULL)
        return;
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        if (hook_rows[i].library != library)
            continue;
        void *function = real_dlsym(handle, hook_rows[i].symbol);
        void *none = NULL; /* another thread may have bound it already, and diverted it since */
        if (hook_rows[i].real != NULL)
            (void)__atomic_compare_exchange_n(hook_rows[i].real, &none,
                                              function != NULL ? function : (void *)cuda_missing, false,
                                              __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
        __atomic_store_n(&driver_functions[i], function, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&bound[library], true, __ATOMIC_RELEASE);
}

void *driver_search(hook_t hook) {
    library_t library = hook_rows[hook].library;
    bind(library, NULL);
    void *function = __atomic_load_n(&driver_functions[hook], __ATOMIC_ACQUIRE);
    if (function != NULL)
        return function;
    return library == LIBRARY_CUDA ? (void *)cuda_missing : (void *)nvml_missing;
}

bool driver_has(hook_t hook) {
    (void)driver_function(hook);
    return __atomic_load_n(&driver_functions[hook], __ATOMIC_ACQUIRE) != NULL;
}

void driver_divert(hook_t launch, void *function) {
    (void)driver_function(launch);
    __atomic_store_n(hook_rows[launch].real, function, __ATOMIC_RELEASE);
}

void *driver_hook_for(const void *function) {
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        void *hook = hook_rows[i].replacement;
        if (hook != NULL && (function == hook || function == __atomic_load_n(&driver_functions[i], __ATOMIC_ACQUIRE)))
            return hook;
    }
    return NULL;
}

/* Threads are in libc since glibc 2.34, before that in a library of their own, which the driver needs and so has
 * loaded.
 */
bool driver_thread(void *(*run)(void *)) {
    typedef int create_t(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static const char *const homes[] = {"libc.so.6", "libpthread.so.0"};
    pthread_t thread;
    create_t *create = NULL;
    driver_chain();
    for (unsigned i = 0; create == NULL && driver_next_dlopen != NULL && i < sizeof homes / sizeof *homes; i++) {
        void *home = ((dlopen_t *)driver_next_dlopen)(homes[i], RTLD_LAZY | RTLD_NOLOAD);
        if (home != NULL)
            *(void **)&create = real_dlsym(home, "pthread_create");
    }
    return create != NULL && create(&thread, NULL, run, NULL) == 0;
}

/* RTLD_DEFAULT and the program's own handle find our own export whether or not there is a driver: what comes after us
 * is the question then. */
static void *find(void *handle, const hook_row_t *row, bool *after_us_p) {
    *after_us_p = handle == RTLD_DEFAULT || handle == RTLD_NEXT;
    void *found = real_dlsym(*after_us_p ? RTLD_NEXT : handle, row->symbol);
    if (found != row->replacement)
        return found;
    *after_us_p = true;
    return real_dlsym(RTLD_NEXT, row->symbol);
}

void *driver_lookup(void *handle, const hook_row_t *row) {
    bool after_us;
    void *found = find(handle, row, &after_us);
    if (found == NULL || __atomic_load_n(&bound[row->library], __ATOMIC_ACQUIRE))
        return found;
    bind(row->library, after_us ? NULL : handle);
    return find(handle, row, &after_us); /* for dlerror is not to tell of what this driver lacks */
}

static void *place_of(void *handle) {
    return handle == RTLD_DEFAULT ? RTLD_NEXT : handle;
}

bool driver_finds(void *handle, const char *symbol) {
    return real_dlsym(place_of(handle), symbol) != NULL;
}

/* libc alone can set what dlerror returns. */
void driver_deny(void *handle, const char *symbol) {
    char absent[128];
    (void)snprintf(absent, sizeof absent, "%s (gpushare does not know it)", symbol);
    (void)real_dlsym(place_of(handle), absent);
}
