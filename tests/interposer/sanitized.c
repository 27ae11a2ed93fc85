/* Additions to a library built with a sanitizer. They replace three functions (`ld --wrap`).
 *
 * A sanitizer looks up the functions that it replaces through dlsym, which is ours, before its memory for
 * instrumented code exists, and again for its first report. In both cases libc answers directly. The helper thread
 * must be started by the sanitizer's pthread_create, which `driver_thread` bypasses on purpose; otherwise the
 * sanitizer would not know the thread.
 *
 * With PLANTED the library has a fault that must be reported: each dlsym of a hooked function increments a number
 * without a lock, or, for the address sanitizer, one beyond the end of an array. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

extern void *driver_next_dlsym;
extern void *driver_next_dlopen;

void __real_driver_chain(void);
void __wrap_driver_chain(void);
bool __real_symbols_answer(void *handle, const char *symbol, void **answer_p);
bool __wrap_symbols_answer(void *handle, const char *symbol, void **answer_p);
bool __wrap_driver_thread(void *(*run)(void *));

#define EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

static bool begun;

/* The loader calls this after the constructors of needed libraries, so after the sanitizer's. */
__attribute__((constructor)) EARLY static void begin(void) {
    begun = true;
}

/* Looked up by version, because only libc has dlvsym. */
EARLY static void *of_libc(const char *symbol) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    void *found = NULL;
    for (unsigned i = 0; found == NULL && i < sizeof versions / sizeof *versions; i++)
        found = dlvsym(RTLD_NEXT, symbol, versions[i]);
    return found;
}

EARLY void __wrap_driver_chain(void) {
    if (begun) {
        __real_driver_chain();
    } else if (driver_next_dlsym == NULL) {
        driver_next_dlopen = of_libc("dlopen");
        driver_next_dlsym = of_libc("dlsym");
    }
}

static bool answer(void *handle, const char *symbol, void **answer_p) {
    bool answered = __real_symbols_answer(handle, symbol, answer_p);
#ifdef PLANTED
    static unsigned numbers[PLANTED];
    static volatile unsigned at = 1;
    numbers[at] += answered;
#endif
    return answered;
}

EARLY bool __wrap_symbols_answer(void *handle, const char *symbol, void **answer_p) {
    static _Thread_local bool answering;
    __wrap_driver_chain();
    if (!begun || answering)
        return false;
    answering = true;
    bool answered = answer(handle, symbol, answer_p);
    answering = false;
    return answered;
}

bool __wrap_driver_thread(void *(*run)(void *)) {
    pthread_t thread;
    return pthread_create(&thread, NULL, run, NULL) == 0;
}
