/* Ways in which programs look up functions and load libraries, selected by name. Exits with 0 if the result is as
 * expected. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what) {
    const char *why = dlerror();
    fprintf(stderr, "%s: %s\n", what, why != NULL ? why : "no reason given");
    return EXIT_FAILURE;
}

/* A library that only this program's RUNPATH leads to. */
static int runpath(const char *library, const char *unused) {
    (void)unused;
    return dlopen(library, RTLD_NOW) != NULL ? EXIT_SUCCESS : fail("dlopen by RUNPATH");
}

/* A plugin that is linked with CUDA and loaded with RTLD_DEEPBIND. */
static int deepbind(const char *plugin, const char *bytes) {
    void *library = dlopen(plugin, RTLD_NOW | RTLD_DEEPBIND);
    if (library == NULL)
        return fail("dlopen of the plugin");
    int (*allocate)(unsigned long long);
    *(void **)&allocate = dlsym(library, "plugin_allocate");
    if (allocate == NULL)
        return fail("dlsym in the plugin");
    printf("%d\n", allocate(strtoull(bytes, NULL, 10)));
    return EXIT_SUCCESS;
}

/* The plugin in apart.c must not find this one. */
const char *version(void);
const char *version(void) {
    return "the program's";
}

/* Prints which function the plugin finds under that name, and whether its lookups give the same result as this
 * program's later lookup. */
static int apart(const char *plugin, const char *symbol) {
    void *library = dlopen(plugin, RTLD_LAZY | RTLD_DEEPBIND);
    if (library == NULL)
        return fail("dlopen of the plugin");
    const char *(*version_of)(void);
    void *(*find)(const char *, const char *);
    *(void **)&version_of = dlsym(library, "plugin_version");
    *(void **)&find = dlsym(library, "plugin_find");
    if (version_of == NULL || find == NULL)
        return fail("dlsym in the plugin");
    void *found = find("libcuda.so.1", symbol), *own = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), symbol);
    printf("%s\n%s\n", version_of(), found != NULL && found == own ? "redirected" : "not redirected");
    return EXIT_SUCCESS;
}

/* A plugin whose libraries call CUDA while they are loaded. */
static int begins(const char *plugin, const char *unused) {
    (void)unused;
    void *library = dlopen(plugin, RTLD_NOW | RTLD_DEEPBIND);
    if (library == NULL)
        return fail("dlopen of the plugin");
    int (*begun)(void);
    *(void **)&begun = dlsym(library, "plugin_begun");
    if (begun == NULL)
        return fail("dlsym in the plugin");
    printf("%d\n", begun());
    return EXIT_SUCCESS;
}

static int absent(const char *library, const char *unused) {
    static const char *const names[] = {"cuNoSuchFunction", "cuGraphAddNode_v3", "nvmlNoSuchFunction", "no_such"};
    (void)unused;
    (void)dlerror();
    if (dlsym(RTLD_DEFAULT, "cuInit") != NULL || dlsym(RTLD_NEXT, "cuInit") != NULL)
        return fail("there is no driver in the process, but cuInit was found");
    if (dlerror() == NULL)
        return fail("a failed dlsym left no dlerror");
    void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (handle == NULL)
        return fail("dlopen of the driver");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (dlsym(handle, names[i]) != NULL)
            return fail(names[i]);
        const char *why = dlerror();
        if (why == NULL || strstr(why, names[i]) == NULL)
            return fail("dlerror does not name the symbol");
    }
    if (dlsym(RTLD_DEFAULT, "cuInit") == NULL || dlsym(RTLD_NEXT, "cuInit") == NULL)
        return fail("the driver is in the process, but cuInit was not found");
    return EXIT_SUCCESS;
}

/* A driver in a separate namespace. Looked up from here, its functions are hooked too. */
static int own_namespace(const char *library, const char *unused) {
    (void)unused;
    void *handle = dlmopen(LM_ID_NEWLM, library, RTLD_NOW);
    if (handle == NULL)
        return fail("dlmopen of the driver");
    int (*init)(unsigned);
    *(void **)&init = dlsym(handle, "cuInit");
    if (init == NULL)
        return fail("dlsym of cuInit");
    printf("%d\n", init(0));
    return EXIT_SUCCESS;
}

/* The driver's functions have no versions, so a lookup by version finds none. For dlsym itself it finds ours. */
static int versioned(const char *library, const char *unused) {
    (void)unused;
    void *handle = dlopen(library, RTLD_NOW);
    if (handle == NULL)
        return fail("dlopen of the driver");
    if (dlvsym(handle, "cuInit", "GLIBC_2.2.5") != NULL || dlvsym(handle, "cuMemAlloc_v2", "CUDA_12") != NULL)
        return fail("a function of the driver was found by a version");
    void *(*lookup)(void *, const char *);
    *(void **)&lookup = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5");
    if (lookup == NULL || lookup != (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"))
        return fail("dlvsym of dlsym");
    printf("%d\n", lookup(handle, "cuInit") == dlsym(handle, "cuInit"));
    return EXIT_SUCCESS;
}

/* The program's own handle, as probes and JIT compilers use it. It finds a driver's functions only after the driver
 * was loaded with RTLD_GLOBAL. Earlier lookups must have no effect. */
static int own_handle(const char *library, const char *init) {
    void *own = dlopen(NULL, RTLD_NOW);
    if (dlsym(own, init) != NULL)
        return fail("there is no driver in the process, but its functions were found");
    void *local = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (local == NULL)
        return fail("dlopen of the driver");
    (void)dlerror();
    if (dlsym(own, init) != NULL || dlerror() == NULL)
        return fail("the driver was loaded with RTLD_LOCAL, but its functions were found");
    void *found = dlsym(local, init);
    if (found == NULL || dlerror() != NULL)
        return fail("a successful dlsym left a dlerror");
    if (dlopen(library, RTLD_NOW | RTLD_GLOBAL) == NULL || dlsym(own, init) != found)
        return fail("the driver was loaded with RTLD_GLOBAL, but the program's own handle finds something else");
    int (*begin)(unsigned);
    *(void **)&begin = found;
    printf("%d\n", begin(0));
    return EXIT_SUCCESS;
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        int (*run)(const char *, const char *);
    } ways[] = {{"runpath", runpath},     {"deepbind", deepbind},    {"apart", apart},
                {"begins", begins},       {"absent", absent},        {"own-namespace", own_namespace},
                {"versioned", versioned}, {"own-handle", own_handle}};
    for (size_t i = 0; count >= 3 && i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(arguments[1], ways[i].name) == 0)
            return ways[i].run(arguments[2], count > 3 ? arguments[3] : "");
    }
    return 2;
}
