/* A toolkit's stub library for linking without a driver: every function returns an error that says so. Built with
 * the driver's soname. */
#define STUB(name, result)                                                                                             \
    int name(void);                                                                                                    \
    int name(void) {                                                                                                   \
        return result;                                                                                                 \
    }
STUB(cuInit, 34)
STUB(cuDriverGetVersion, 34)
STUB(cuGetProcAddress_v2, 34)
STUB(cuMemAlloc_v2, 34)
STUB(nvmlInit_v2, 9)
STUB(nvmlSystemGetDriverVersion, 9)
STUB(nvmlDeviceGetMemoryInfo, 9)
