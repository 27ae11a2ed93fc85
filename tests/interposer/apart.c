/* A plugin with a function of the same name as one of the program's, and no word about CUDA: it looks for what it is
 * told to look for. */
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
