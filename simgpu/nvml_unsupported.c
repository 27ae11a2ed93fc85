/* The functions of NVML for which nothing is simulated. The real library exports all of them whatever the GPU, and
 * programs look some up that they never call: a GPU that does not support a thing says so when it is asked. */
#include "nvml_session.h"

static nvmlReturn_t answer(void) {
    unsigned count;
    return session_gpus(&count) == NULL ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_NOT_SUPPORTED;
}

/* Whatever the arguments are: the caller cleans up after them. */
#define UNSUPPORTED(name)                                                                                              \
    NVML_API nvmlReturn_t name(void);                                                                                  \
    nvmlReturn_t name(void) {                                                                                          \
        return answer();                                                                                               \
    }
#include "nvml_unsupported.def"
