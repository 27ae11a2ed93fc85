/* The GPU's memory as NVML reports it, for nvidia-smi and libraries, and the initialization of NVML on nodes where
 * only registered processes may open the device files. */
#include "driver/driver.h"
#include "session/join.h"
#include "share/share.h"

#define UUID_TEXT 96

static int digit(char character) {
    if (character >= '0' && character <= '9')
        return character - '0';
    character |= 0x20;
    return character >= 'a' && character <= 'f' ? character - 'a' + 10 : -1;
}

/* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or the same with MIG-. */
static bool parse_uuid(const char *text, uint8_t uuid[16]) {
    unsigned digits = 0;
    while (*text != '\0' && *text != '-')
        text++;
    for (; *text != '\0'; text++) {
        int value = digit(*text);
        if (*text == '-')
            continue;
        if (value < 0 || digits == 32)
            return false;
        uuid[digits / 2] = (uint8_t)(digits % 2 == 0 ? value << 4 : uuid[digits / 2] | value);
        digits++;
    }
    return digits == 32;
}

static uint32_t gpu_of(nvmlDevice_t device) {
    char text[UUID_TEXT];
    uint8_t uuid[16];
    if (REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NVML_SUCCESS || !parse_uuid(text, uuid))
        return SHARE_NO_GPU;
    return share_find_gpu(uuid);
}

static void show_share(uint32_t gpu, unsigned long long *total, unsigned long long *free, unsigned long long *used) {
    uint64_t limit_bytes = share_limit_bytes(gpu);
    uint64_t used_bytes = share_used_bytes(gpu);
    if (limit_bytes < *total)
        *total = limit_bytes;
    *used = used_bytes < *total ? used_bytes : *total;
    *free = *total - *used;
}

/* NVML returns these if it cannot open the device files, but also for other reasons. */
static bool may_be_denied(nvmlReturn_t result) {
    return result == NVML_ERROR_NO_PERMISSION || result == NVML_ERROR_UNKNOWN;
}

/* A program that only monitors GPUs does not join the share, unless it would see no GPU otherwise. */
#define INIT(symbol, parameters, ...)                                                                                  \
    nvmlReturn_t symbol parameters {                                                                                   \
        __typeof__(symbol) *real = REAL(symbol);                                                                       \
        nvmlReturn_t result = real(__VA_ARGS__);                                                                       \
        if (may_be_denied(result) && session_join())                                                                   \
            result = real(__VA_ARGS__);                                                                                \
        if (result == NVML_SUCCESS)                                                                                    \
            driver_pin(HOOK_##symbol, (void *)real);                                                                   \
        return result;                                                                                                 \
    }
INIT(nvmlInitWithFlags, (unsigned flags), flags)
INIT(nvmlInit_v2, (void))
INIT(nvmlInit, (void))

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    if (!session_join())
        return NVML_ERROR_NOT_READY;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    uint32_t gpu = result == NVML_SUCCESS ? gpu_of(device) : SHARE_NO_GPU;
    if (gpu != SHARE_NO_GPU)
        show_share(gpu, &memory->total, &memory->free, &memory->used);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    if (!session_join())
        return NVML_ERROR_NOT_READY;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    uint32_t gpu = result == NVML_SUCCESS ? gpu_of(device) : SHARE_NO_GPU;
    if (gpu != SHARE_NO_GPU) {
        show_share(gpu, &memory->total, &memory->free, &memory->used);
        memory->reserved = 0;
    }
    return result;
}
