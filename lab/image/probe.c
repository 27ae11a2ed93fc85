/* gpushare-probe: what a CUDA program sees of its GPUs, and how much of them it gets.
 *
 * A driver-API program like those of the real world: it finds the driver when it runs, by dlopen and cuGetProcAddress,
 * as the CUDA runtime does; with --direct by dlsym, as many others do. It needs no CUDA headers, and runs in a
 * container of the lab on simulated GPUs as well as on a real one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CUDA_SUCCESS 0
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define MAX_DEVICES 64
#define KERNELS_AT_A_TIME 5
#define TELL_SECONDS 0.1
#define IDLE_SECONDS 0.1

static const char usage[] =
    "usage: gpushare-probe [--direct] [--nvml] [--device N] [--allocate SIZE[,SIZE...]] [--fill]\n"
    "                      [--kernels N] [--seconds S [--load FILE]] [--duration-us D] [--hold SECONDS]\n"
    "\n"
    "Prints every visible GPU: its name, UUID, total and free bytes. Then, on one of them (default: the first):\n"
    "  --allocate   each size in turn, in bytes or with KiB, MiB, GiB: \"allocated N\" or \"refused N: WHY\"\n"
    "  --fill       as much as there is, to the byte: \"filled N\"\n"
    "  --kernels    N kernels of D microseconds (simulated GPUs only): how long they took\n"
    "  --seconds    such kernels for S seconds; what was done by when, by the machine's own clock, every 0.1 s\n"
    "  --load       in what part of those seconds, in percent, by the number in FILE, which may change\n"
    "  --hold       keeps everything allocated for so long\n"
    "  --nvml       also what NVML says\n"
    "  --direct     find functions by dlsym instead of cuGetProcAddress\n"
    "\n"
    "Exit status: 0 when everything asked for was had, 1 when something was refused or failed, 2 for a wrong call.\n";

/* The driver's functions that are used here: FUNCTION(member, exported symbol, name, version, parameters). */
#define FUNCTIONS                                                                                                      \
    FUNCTION(init, "cuInit", "cuInit", 2000, (unsigned))                                                               \
    FUNCTION(error_name, "cuGetErrorName", "cuGetErrorName", 6000, (int, const char **))                               \
    FUNCTION(device_count, "cuDeviceGetCount", "cuDeviceGetCount", 2000, (int *))                                      \
    FUNCTION(device_name, "cuDeviceGetName", "cuDeviceGetName", 2000, (char *, int, int))                              \
    FUNCTION(device_uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid", 11040, (uint8_t *, int))                            \
    FUNCTION(device_total, "cuDeviceTotalMem_v2", "cuDeviceTotalMem", 3020, (size_t *, int))                           \
    FUNCTION(context_retain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, (void **, int))             \
    FUNCTION(context_set, "cuCtxSetCurrent", "cuCtxSetCurrent", 4000, (void *))                                        \
    FUNCTION(context_wait, "cuCtxSynchronize", "cuCtxSynchronize", 2000, (void))                                       \
    FUNCTION(memory_info, "cuMemGetInfo_v2", "cuMemGetInfo", 3020, (size_t *, size_t *))                               \
    FUNCTION(allocate, "cuMemAlloc_v2", "cuMemAlloc", 3020, (unsigned long long *, size_t))                            \
    FUNCTION(module_load, "cuModuleLoadData", "cuModuleLoadData", 2000, (void **, const void *))                       \
    FUNCTION(module_function, "cuModuleGetFunction", "cuModuleGetFunction", 2000, (void **, void *, const char *))     \
    FUNCTION(launch, "cuLaunchKernel", "cuLaunchKernel", 4000,                                                         \
             (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))

static struct {
#define FUNCTION(member, symbol, name, version, parameters) int(*member) parameters;
    FUNCTIONS
#undef FUNCTION
} cuda;

static const struct {
    void **target;
    const char *symbol;
    const char *name;
    int version;
} functions[] = {
#define FUNCTION(member, symbol, name, version, parameters) {(void **)&cuda.member, symbol, name, version},
    FUNCTIONS
#undef FUNCTION
};

typedef struct {
    bool direct, nvml, fill;
    int device;
    const char *sizes, *load;
    unsigned long kernels, duration_us, hold_seconds, seconds;
} options_t;

static bool failed(const char *what, int result) {
    const char *name = "an unknown error";
    if (result == CUDA_SUCCESS)
        return false;
    if (cuda.error_name != NULL)
        (void)cuda.error_name(result, &name);
    printf("%s failed: %s (%d)\n", what, name != NULL ? name : "an unknown error", result);
    return true;
}

static bool load_cuda(bool direct) {
    typedef int get_address_t(const char *, void **, int, uint64_t, int *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        printf("no CUDA driver: %s\n", dlerror());
        return false;
    }
    get_address_t *get_address = NULL;
    *(void **)&get_address = dlsym(library, "cuGetProcAddress_v2");
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        int status;
        if (direct || get_address == NULL)
            *functions[i].target = dlsym(library, functions[i].symbol);
        else if (get_address(functions[i].name, functions[i].target, functions[i].version, 0, &status) != CUDA_SUCCESS)
            *functions[i].target = NULL;
        if (*functions[i].target == NULL) {
            printf("the CUDA driver has no %s\n", functions[i].symbol);
            return false;
        }
    }
    return true;
}

static bool use_device(int device) {
    void *context;
    return !failed("cuDevicePrimaryCtxRetain", cuda.context_retain(&context, device)) &&
           !failed("cuCtxSetCurrent", cuda.context_set(context));
}

static bool show_device(int device) {
    char name[256];
    uint8_t u[16];
    size_t total_bytes, free_bytes, context_total_bytes;
    if (failed("cuDeviceGetName", cuda.device_name(name, sizeof name, device)) ||
        failed("cuDeviceGetUuid", cuda.device_uuid(u, device)) ||
        failed("cuDeviceTotalMem", cuda.device_total(&total_bytes, device)) || !use_device(device) ||
        failed("cuMemGetInfo", cuda.memory_info(&free_bytes, &context_total_bytes)))
        return false;
    printf(
        "device %d: %s GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x total %zu free %zu\n",
        device, name, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
        u[15], total_bytes, free_bytes);
    return true;
}

static bool show_nvml(void) {
    struct {
        unsigned long long total, free, used;
    } memory;
    int (*init)(void), (*count)(unsigned *), (*handle)(unsigned, void **), (*uuid)(void *, char *, unsigned),
        (*info)(void *, void *);
    const struct {
        void **target;
        const char *symbol;
    } wanted[] = {
        {(void **)&init, "nvmlInit_v2"},
        {(void **)&count, "nvmlDeviceGetCount_v2"},
        {(void **)&handle, "nvmlDeviceGetHandleByIndex_v2"},
        {(void **)&uuid, "nvmlDeviceGetUUID"},
        {(void **)&info, "nvmlDeviceGetMemoryInfo"},
    };
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].target = library != NULL ? dlsym(library, wanted[i].symbol) : NULL;
        if (*wanted[i].target == NULL) {
            printf("no NVML: %s\n", dlerror());
            return false;
        }
    }
    unsigned devices = 0;
    int result = init();
    if (result == 0)
        result = count(&devices);
    for (unsigned i = 0; i < devices && result == 0; i++) {
        void *device;
        char text[96];
        result = handle(i, &device);
        if (result == 0)
            result = uuid(device, text, sizeof text);
        if (result == 0)
            result = info(device, &memory);
        if (result == 0)
            printf("nvml %u: %s total %llu free %llu used %llu\n", i, text, memory.total, memory.free, memory.used);
    }
    if (result != 0)
        printf("NVML failed: %d\n", result);
    return result == 0;
}

static bool parse_size(const char **text_p, size_t *bytes_p) {
    static const struct {
        const char *unit;
        unsigned shift;
    } units[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    char *end;
    unsigned long long number = strtoull(*text_p, &end, 10);
    if (end == *text_p)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strncmp(end, units[i].unit, 3) == 0) {
            number <<= units[i].shift;
            end += 3;
            break;
        }
    }
    *bytes_p = (size_t)number;
    *text_p = end + (*end == ',');
    return *end == ',' || *end == '\0';
}

static bool allocate_all(const char *sizes) {
    bool all = true;
    size_t bytes;
    while (*sizes != '\0') {
        unsigned long long pointer;
        const char *name = NULL;
        if (!parse_size(&sizes, &bytes)) {
            printf("--allocate: write sizes as bytes or with KiB, MiB, GiB, and commas between them\n");
            return false;
        }
        int result = cuda.allocate(&pointer, bytes);
        if (result == CUDA_SUCCESS) {
            printf("allocated %zu\n", bytes);
            continue;
        }
        (void)cuda.error_name(result, &name);
        printf("refused %zu: %s\n", bytes, name != NULL ? name : "an unknown error");
        all = false;
    }
    return all;
}

/* Steps are halved from the largest that fits down to one byte, so what is left at the end is nothing. */
static bool fill(void) {
    size_t free_bytes, total_bytes, filled_bytes = 0;
    unsigned long long pointer;
    int result = CUDA_SUCCESS;
    if (failed("cuMemGetInfo", cuda.memory_info(&free_bytes, &total_bytes)))
        return false;
    size_t step_bytes = 1;
    while (step_bytes < total_bytes)
        step_bytes *= 2;
    while (step_bytes > 0) {
        result = cuda.allocate(&pointer, step_bytes);
        if (result == CUDA_SUCCESS)
            filled_bytes += step_bytes;
        else if (result == CUDA_ERROR_OUT_OF_MEMORY)
            step_bytes /= 2;
        else
            break;
    }
    printf("filled %zu\n", filled_bytes);
    return result == CUDA_ERROR_OUT_OF_MEMORY || !failed("cuMemAlloc", result);
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static bool load_kernel(unsigned long duration_us, void **function) {
    char name[64];
    void *module;
    (void)snprintf(name, sizeof name, "spin_%luus", duration_us);
    return !failed("cuModuleLoadData", cuda.module_load(&module, "")) &&
           !failed("cuModuleGetFunction", cuda.module_function(function, module, name));
}

static bool launch_and_wait(void *function, unsigned long count) {
    for (unsigned long i = 0; i < count; i++) {
        if (failed("cuLaunchKernel", cuda.launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)))
            return false;
    }
    return !failed("cuCtxSynchronize", cuda.context_wait());
}

static bool run_kernels(unsigned long count, unsigned long duration_us) {
    void *function;
    if (!load_kernel(duration_us, &function))
        return false;
    double start = now_seconds();
    if (!launch_and_wait(function, count))
        return false;
    printf("ran %lu kernels of %lu us in %.6f seconds\n", count, duration_us, now_seconds() - start);
    return true;
}

/* The number in a file, 0 to 100; 0 without one. */
static double read_load(const char *file) {
    char text[16] = "";
    FILE *stream = fopen(file, "re");
    if (stream != NULL) {
        if (fgets(text, sizeof text, stream) == NULL)
            text[0] = '\0';
        (void)fclose(stream);
    }
    double percent = strtod(text, NULL);
    return percent < 0 ? 0 : percent > 100 ? 100 : percent;
}

/* Idles as long as the file asks for after `busy_seconds`; returns whether there is work now. */
static bool idle_for(const char *file, double busy_seconds) {
    double percent = read_load(file), idle_seconds = IDLE_SECONDS;
    if (percent > 0)
        idle_seconds = busy_seconds * (100 - percent) / percent;
    (void)usleep((useconds_t)(idle_seconds * 1e6));
    return percent > 0;
}

/* A few at a time, as a program that looks at its results now and then. */
static bool run_for(unsigned long seconds, unsigned long duration_us, const char *load) {
    void *function;
    if (!load_kernel(duration_us, &function))
        return false;
    unsigned long done = 0;
    double start = now_seconds(), told = start, now = start, busy_seconds = 0;
    do {
        if (load == NULL || idle_for(load, busy_seconds)) {
            double begun = now_seconds();
            if (!launch_and_wait(function, KERNELS_AT_A_TIME))
                return false;
            done += KERNELS_AT_A_TIME;
            busy_seconds = now_seconds() - begun;
        }
        now = now_seconds();
        if (now >= told + TELL_SECONDS) {
            printf("done %lu at %.6f\n", done, now);
            told = now;
        }
    } while (now < start + (double)seconds);
    return true;
}

static bool parse_number(const char *text, unsigned long *number_p) {
    char *end;
    *number_p = text != NULL ? strtoul(text, &end, 10) : 0;
    return text != NULL && end != text && *end == '\0';
}

static bool parse_options(char **arguments, options_t *options) {
    *options = (options_t){.duration_us = 1000};
    for (char **at = arguments + 1; *at != NULL; at++) {
        unsigned long number;
        if (strcmp(*at, "--direct") == 0)
            options->direct = true;
        else if (strcmp(*at, "--nvml") == 0)
            options->nvml = true;
        else if (strcmp(*at, "--fill") == 0)
            options->fill = true;
        else if (strcmp(*at, "--allocate") == 0 && at[1] != NULL)
            options->sizes = *++at;
        else if (strcmp(*at, "--load") == 0 && at[1] != NULL)
            options->load = *++at;
        else if (strcmp(*at, "--device") == 0 && parse_number(at[1], &number) && number < MAX_DEVICES)
            at++, options->device = (int)number;
        else if (strcmp(*at, "--kernels") == 0 && parse_number(at[1], &options->kernels))
            at++;
        else if (strcmp(*at, "--duration-us") == 0 && parse_number(at[1], &options->duration_us))
            at++;
        else if (strcmp(*at, "--seconds") == 0 && parse_number(at[1], &options->seconds))
            at++;
        else if (strcmp(*at, "--hold") == 0 && parse_number(at[1], &options->hold_seconds))
            at++;
        else
            return false;
    }
    return true;
}

int main(int count, char **arguments) {
    options_t options;
    int devices;
    (void)count;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!parse_options(arguments, &options)) {
        fputs(usage, stderr);
        return 2;
    }
    if (!load_cuda(options.direct) || failed("cuInit", cuda.init(0)) ||
        failed("cuDeviceGetCount", cuda.device_count(&devices)))
        return EXIT_FAILURE;

    bool fine = true;
    for (int device = 0; device < devices; device++)
        fine = show_device(device) && fine;
    if (options.nvml)
        fine = show_nvml() && fine;
    if (!use_device(options.device))
        return EXIT_FAILURE;
    if (options.sizes != NULL)
        fine = allocate_all(options.sizes) && fine;
    if (options.fill)
        fine = fill() && fine;
    if (options.kernels > 0)
        fine = run_kernels(options.kernels, options.duration_us) && fine;
    if (options.seconds > 0)
        fine = run_for(options.seconds, options.duration_us, options.load) && fine;
    if (options.hold_seconds > 0) {
        printf("holding for %lu seconds\n", options.hold_seconds);
        sleep((unsigned)options.hold_seconds);
    }
    return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
