/* A program that tries several copies of libcuda or libnvidia-ml in turn and uses the first one that initializes. It
 * prints the result for each.
 *
 *   tries LIBRARY...
 *
 * Prefixes: + initializes and closes it, as a program does that only checks for a GPU. ? asks for its version and
 * closes it. = initializes it while another one is in use. ! is a plugin linked with the driver. * looks its
 * functions up with cuGetProcAddress, as the CUDA runtime does. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define FOUND(handle, name, ...) ((int (*)(__VA_ARGS__))dlsym(handle, name))

static void use_cuda(void *driver) {
    int device = -1;
    void *context;
    unsigned long long pointer;
    size_t free_bytes, total_bytes = 0;
    int results[] = {
        FOUND(driver, "cuDeviceGet", int *, int)(&device, 0),
        FOUND(driver, "cuCtxCreate_v2", void **, unsigned, int)(&context, 0, device),
        FOUND(driver, "cuMemAlloc_v2", unsigned long long *, size_t)(&pointer, 1 << 20),
        FOUND(driver, "cuMemAlloc_v2", unsigned long long *, size_t)(&pointer, 1ul << 30),
        FOUND(driver, "cuMemGetInfo_v2", size_t *, size_t *)(&free_bytes, &total_bytes),
    };
    printf("used:");
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        printf(" %d", results[i]);
    printf(" %zu MiB\n", total_bytes >> 20);
}

static void use_nvml(void *nvml) {
    void *device = NULL;
    unsigned long long memory[3] = {0};
    int found = FOUND(nvml, "nvmlDeviceGetHandleByIndex_v2", unsigned, void **)(0, &device);
    int told = FOUND(nvml, "nvmlDeviceGetMemoryInfo", void *, void *)(device, memory);
    printf("used: %d %d %llu MiB\n", found, told, memory[0] >> 20);
}

static void use_plugin(const char *file) {
    void *plugin = dlopen(file, RTLD_LAZY);
    int small = FOUND(plugin, "plugin_allocate", unsigned long long)(1 << 20);
    printf("plugin: %d %d\n", small, FOUND(plugin, "plugin_allocate", unsigned long long)(1ul << 30));
}

static void *asked_for(void *driver, const char *name) {
    void *function = NULL;
    (void)FOUND(driver, "cuGetProcAddress_v2", const char *, void **, int, uint64_t, int *)(name, &function, 12000, 0,
                                                                                            NULL);
    return function;
}

static void use_by_questions(void *driver) {
    unsigned long long pointer;
    size_t free_bytes, total_bytes = 0;
    void *context;
    int started = ((int (*)(unsigned))asked_for(driver, "cuInit"))(0);
    (void)((int (*)(void **, int))asked_for(driver, "cuDevicePrimaryCtxRetain"))(&context, 0);
    (void)((int (*)(void *))asked_for(driver, "cuCtxSetCurrent"))(context);
    int (*allocate)(unsigned long long *, size_t) = asked_for(driver, "cuMemAlloc");
    int small = allocate(&pointer, 1 << 20), large = allocate(&pointer, 1ul << 30);
    (void)((int (*)(size_t *, size_t *))asked_for(driver, "cuMemGetInfo"))(&free_bytes, &total_bytes);
    printf("found: %d %d %d %zu MiB\n", started, small, large, total_bytes >> 20);
}

static int start(void *library, int nvml) {
    return nvml ? FOUND(library, "nvmlInit_v2", void)() : FOUND(library, "cuInit", unsigned)(0);
}

/* A function that was not found is not called. */
static int version(void *library, int nvml) {
    char text[96];
    int number;
    return nvml ? FOUND(library, "nvmlSystemGetDriverVersion", char *, unsigned)(text, sizeof text)
                : FOUND(library, "cuDriverGetVersion", int *)(&number);
}

int main(int count, char **arguments) {
    void *used = NULL;
    for (int i = 1; i < count; i++) {
        char how = strchr("+?=!*", arguments[i][0]) != NULL ? arguments[i][0] : ' ';
        const char *file = arguments[i] + (how != ' ');
        int nvml = strstr(file, "nvidia-ml") != NULL;
        if (how == '!') {
            use_plugin(file);
            continue;
        }
        void *library = dlopen(file, RTLD_LAZY);
        if (how == '*') {
            use_by_questions(library);
            continue;
        }
        if (library == NULL || dlsym(library, nvml ? "nvmlInit_v2" : "cuInit") == NULL) {
            printf("not there\n");
            continue;
        }
        int result = how == '?' ? version(library, nvml) : start(library, nvml);
        printf("%s: %d\n", how == '?' ? "asked" : "started", result);
        if (how == '=')
            (nvml ? use_nvml : use_cuda)(used);
        else if (result == 0 && how == ' ')
            (nvml ? use_nvml : use_cuda)(used = library);
        else
            (void)dlclose(library);
    }
    return 0;
}
