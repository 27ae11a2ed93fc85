/* What toolkits have for linking where there is no driver: every function says that it is a stub. Built with the
 * driver's own soname. */
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
