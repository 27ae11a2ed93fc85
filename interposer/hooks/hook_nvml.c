/* How large the GPU is, as NVML tells it, for nvidia-smi and for libraries that ask there. */
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
    return share_gpu(uuid);
}

static void show_share(uint32_t gpu, unsigned long long *total, unsigned long long *free, unsigned long long *used) {
    uint64_t limit_bytes = share_limit_bytes(gpu);
    uint64_t used_bytes = share_used_bytes(gpu);
    if (limit_bytes < *total)
        *total = limit_bytes;
    *used = used_bytes < *total ? used_bytes : *total;
    *free = *total - *used;
}

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
