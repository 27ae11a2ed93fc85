/* A libcuda.so.1 that does nothing, so that the cost of a launch before the driver can be measured. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default"), noinline))

static uint64_t launches;

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    return 0;
}

/* The GPU of the arbiter's share: its UUID in hexadecimal digits, from the environment. */
EXPORT int cuDeviceGetUuid_v2(uint8_t *uuid, int device) {
    const char *digits = getenv("NULL_DRIVER_UUID");
    (void)device;
    for (unsigned i = 0; i < 16; i++) {
        unsigned byte;
        if (digits == NULL || sscanf(digits + 2 * i, "%2x", &byte) != 1)
            return 999;
        uuid[i] = (uint8_t)byte;
    }
    return 0;
}

EXPORT int cuCtxGetDevice(int *device) {
    *device = 0;
    return 0;
}

EXPORT int cuCtxGetCurrent(void **context) {
    *context = &launches;
    return 0;
}

EXPORT int cuCtxPushCurrent_v2(void *context) {
    (void)context;
    return 0;
}

EXPORT int cuCtxPopCurrent_v2(void **context) {
    *context = &launches;
    return 0;
}

EXPORT int cuStreamCreate(void **stream, unsigned flags) {
    static uint64_t streams[64];
    static unsigned count;
    (void)flags;
    *stream = &streams[count++ % 64];
    return 0;
}

EXPORT int cuStreamGetCtx(void *stream, void **context) {
    (void)stream;
    *context = &launches;
    return 0;
}

/* Work ends at once, so that no launch is held back. */
EXPORT int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = &launches;
    return 0;
}

EXPORT int cuEventRecord(void *event, void *stream) {
    (void)event, (void)stream;
    return 0;
}

EXPORT int cuEventQuery(void *event) {
    (void)event;
    return 0;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
    (void)mode;
    return 0;
}

EXPORT int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
                          void **extra) {
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared_bytes, (void)stream, (void)parameters, (void)extra;
    __asm__ volatile("" : "+m"(launches)::"memory");
    launches++;
    return 0;
}

/* The same function under a name without a hook. */
EXPORT __attribute__((alias("cuLaunchKernel"))) int null_launch(void *function, unsigned grid_x, unsigned grid_y,
                                                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                                                unsigned block_z, unsigned shared_bytes, void *stream,
                                                                void **parameters, void **extra);
