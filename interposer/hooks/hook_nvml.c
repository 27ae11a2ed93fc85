/* How large the GPU is, as NVML tells it, for nvidia-smi and for libraries that ask there; and how NVML begins where
 * the node denies the driver's device files to who has not joined. */
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

/* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or MIG- before the same. */
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

/* What it says when its device file cannot be opened, which it says of other troubles as well. */
static bool may_be_denied(nvmlReturn_t result) {
    return result == NVML_ERROR_NO_PERMISSION || result == NVML_ERROR_UNKNOWN;
}

/* Who only looks at GPUs joins no share for that, but where nothing is to be seen without. */
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
