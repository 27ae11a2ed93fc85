#define _GNU_SOURCE
#include "driver/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "base/fork.h"
#include "base/report.h"
#include "driver/libc.h"
#include "driver/loaded.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#    error "the library is built for x86-64 and aarch64: other machines need their own symbols_*.S and launches_*.S"
#endif

typedef void *dlsym_t(void *handle, const char *symbol);
typedef void *dlopen_t(const char *file, int mode);

void *driver_next_dlsym;
void *driver_next_dlopen;

void *driver_functions[HOOK_COUNT];

/* The copy of a library that is in use. Programs try several copies, so until one is initialized, it is the copy in
 * which the program last found a function. It is not held open, or a search by name would find it again instead of
 * the next copy. The first copy that is initialized stays in use. */
typedef struct {
    bool bound;
    loaded_t place;
} copy_t;

static void *candidates[HOOK_COUNT]; /* the copy's functions; once it is pinned, driver_functions has them too */
static copy_t copies[LIBRARY_COUNT];
static bool pinned[LIBRARY_COUNT];                        /* a copy has been initialized */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* for both; never held while calling the loader */

static void copies_after_fork(void) {
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
FORK_ON_CHILD(copies_after_fork)

static const struct {
    const char *file;
    hook_t probe; /* a function that every copy exports, but no wrapper of the library */
} libraries[LIBRARY_COUNT] = {
    [LIBRARY_CUDA] = {"libcuda.so.1", HOOK_cuDriverGetVersion},
    [LIBRARY_NVML] = {"libnvidia-ml.so.1", HOOK_nvmlSystemGetDriverVersion},
};

static CUresult cuda_missing(void) {
    return CUDA_ERROR_NOT_FOUND;
}

static nvmlReturn_t nvml_missing(void) {
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static CUresult cuda_refused(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t nvml_refused(void) {
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Two threads that search for libc's dlsym at once find the same one. */
static void *real_dlsym(void *handle, const char *symbol) {
    static dlsym_t *found;
    dlsym_t *lookup = __atomic_load_n(&found, __ATOMIC_ACQUIRE);
    if (lookup == NULL) {
        *(void **)&lookup = libc_function("dlsym");
        __atomic_store_n(&found, lookup, __ATOMIC_RELEASE);
    }
    return lookup != NULL ? lookup(handle, symbol) : NULL;
}

/* Find the next dlsym and dlopen in the chain, which may be another preloaded library's. A search by version would
 * skip libraries without symbol versions. */
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

static void *open_loaded(const char *file) {
    driver_chain();
    return driver_next_dlopen != NULL ? ((dlopen_t *)driver_next_dlopen)(file, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

static void close_handle(void *handle) {
    int (*close)(void *) = NULL;
    *(void **)&close = real_dlsym(RTLD_NEXT, "dlclose");
    if (close != NULL)
        (void)close(handle);
}

static bool is_pinned(library_t library) {
    return __atomic_load_n(&pinned[library], __ATOMIC_ACQUIRE);
}

static void *candidate(hook_t hook) {
    return __atomic_load_n(&candidates[hook], __ATOMIC_ACQUIRE);
}

/* With the lock held. A diverted launch stays diverted. */
static void set_function(hook_t hook, void *function) {
    void *before = candidates[hook] != NULL ? candidates[hook] : (void *)cuda_missing, *none = NULL;
    void **real = hook_rows[hook].real;
    void *after = function != NULL ? function : (void *)cuda_missing;
    if (real != NULL && !__atomic_compare_exchange_n(real, &none, after, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        (void)__atomic_compare_exchange_n(real, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    __atomic_store_n(&candidates[hook], function, __ATOMIC_RELEASE);
}

/* Use the functions found through this handle, but never our own: a hook that took itself for the driver's function
 * would recurse endlessly. */
static void use_copy(library_t library, void *handle) {
    void *functions[HOOK_COUNT];
    copy_t copy = {.bound = true};
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        const hook_row_t *row = &hook_rows[i];
        functions[i] = row->library == library ? real_dlsym(handle, row->symbol) : NULL;
        if (functions[i] != NULL && functions[i] == row->replacement)
            functions[i] = real_dlsym(RTLD_NEXT, row->symbol);
    }
    loaded_containing(functions[libraries[library].probe], &copy.place);
    (void)fork_watch(); /* a process in which this fails cannot join either */
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; !pinned[library] && i < HOOK_COUNT; i++) {
        if (hook_rows[i].library == library)
            set_function((hook_t)i, functions[i]);
    }
    if (!pinned[library])
        copies[library] = copy;
    pthread_mutex_unlock(&mutex);
}

/* The copy was unloaded, so its functions must not be called. */
static void drop_copy(library_t library) {
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; !pinned[library] && i < HOOK_COUNT; i++) {
        if (hook_rows[i].library == library)
            set_function((hook_t)i, NULL);
    }
    if (!pinned[library])
        copies[library].bound = false;
    pthread_mutex_unlock(&mutex);
}

static bool is_bound(library_t library) {
    pthread_mutex_lock(&mutex);
    copy_t copy = copies[library];
    pthread_mutex_unlock(&mutex);
    return copy.bound && (is_pinned(library) || loaded_is_present(&copy.place));
}

/* Find the library that is loaded under its usual name, if there is no usable copy. */
static void find_copy(library_t library) {
    if (is_pinned(library) || is_bound(library))
        return;
    void *handle = open_loaded(libraries[library].file);
    if (handle == NULL) {
        drop_copy(library);
        return;
    }
    use_copy(library, handle);
    close_handle(handle);
}

void *driver_search(hook_t hook) {
    library_t library = hook_rows[hook].library;
    find_copy(library);
    void *function = candidate(hook);
    if (function != NULL)
        return function;
    return library == LIBRARY_CUDA ? (void *)cuda_missing : (void *)nvml_missing;
}

bool driver_has(hook_t hook) {
    find_copy(hook_rows[hook].library);
    return candidate(hook) != NULL;
}

void driver_pin(hook_t start, void *function) {
    library_t library = hook_rows[start].library;
    loaded_t place;
    if (is_pinned(library))
        return;
    loaded_containing(function, &place);
    void *handle =
        place.file[0] != '\0' ? open_loaded(place.file) : NULL; /* never closed: its functions must stay loaded */
    if (handle != NULL && candidate(start) != function)
        use_copy(library, handle);
    pthread_mutex_lock(&mutex);
    copies[library].place = place;
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        if (hook_rows[i].library == library)
            __atomic_store_n(&driver_functions[i], candidates[i], __ATOMIC_RELEASE);
    }
    __atomic_store_n(&pinned[library], true, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mutex);
}

void driver_divert(hook_t launch, void *function) {
    (void)driver_function(launch);
    __atomic_store_n(hook_rows[launch].real, function, __ATOMIC_RELEASE);
}

void *driver_hook_for(const void *function) {
    for (unsigned i = 0; i < HOOK_COUNT; i++) {
        void *hook = hook_rows[i].replacement;
        if (hook != NULL && (function == hook || function == candidate((hook_t)i)))
            return hook;
    }
    return NULL;
}

/* pthread_create is in libc since glibc 2.34, and before that in libpthread, which the driver needs and has loaded. */
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

/* RTLD_DEFAULT and the program's own handle find our exports even without a driver, so the search continues after
 * us. */
static void *find(void *handle, const hook_row_t *row, bool *after_us_p) {
    *after_us_p = handle == RTLD_DEFAULT || handle == RTLD_NEXT;
    void *found = real_dlsym(*after_us_p ? RTLD_NEXT : handle, row->symbol);
    if (found != row->replacement)
        return found;
    *after_us_p = true;
    return real_dlsym(RTLD_NEXT, row->symbol);
}

/* With two copies in use, one would escape the limits, or all calls without a hook would go to the wrong one. */
static void *refuse(library_t library, const void *probe) {
    static bool reported[LIBRARY_COUNT];
    loaded_t other;
    loaded_containing(probe, &other);
    if (!__atomic_exchange_n(&reported[library], true, __ATOMIC_RELAXED))
        report(
            "a second copy of %s is refused (%s): this process already uses %s; make the program load only one of them",
            libraries[library].file, other.file, copies[library].place.file);
    return library == LIBRARY_CUDA ? (void *)cuda_refused : (void *)nvml_refused;
}

void *driver_lookup(void *handle, const hook_row_t *row) {
    bool after_us;
    library_t library = row->library;
    if (find(handle, row, &after_us) == NULL)
        return NULL;
    void *where = after_us ? RTLD_NEXT : handle;
    void *probe = real_dlsym(where, hook_rows[libraries[library].probe].symbol);
    if (is_pinned(library)) {
        if (!after_us && probe != NULL && probe != candidate(libraries[library].probe))
            return refuse(library, probe);
    } else {
        find_copy(library);
        if (!is_bound(library) || (probe != NULL && probe != candidate(libraries[library].probe)))
            use_copy(library, where);
    }
    (void)find(handle, row, &after_us); /* clears dlerror, where the driver's missing functions left a message */
    return row->replacement;
}

static void *search_start(void *handle) {
    return handle == RTLD_DEFAULT ? RTLD_NEXT : handle;
}

bool driver_has_symbol(void *handle, const char *symbol) {
    return real_dlsym(search_start(handle), symbol) != NULL;
}

/* Only libc can set the message that dlerror returns. */
void driver_fail_lookup(void *handle, const char *symbol) {
    char absent[128];
    (void)snprintf(absent, sizeof absent, "%s (gpushare does not know it)", symbol);
    (void)real_dlsym(search_start(handle), absent);
}
