/* A plugin that does not mention CUDA and has a function with the same name as one of the program's. It looks up any
 * name that it is given. */
#include <dlfcn.h>
#include <stddef.h>

const char *version(void);
const char *plugin_version(void);
void *plugin_find(const char *library, const char *symbol);

const char *version(void) {
    return "the plugin's";
}

const char *plugin_version(void) {
    return version();
}

void *plugin_find(const char *library, const char *symbol) {
    void *handle = dlopen(library, RTLD_NOW);
    return handle != NULL ? dlsym(handle, symbol) : NULL;
}
