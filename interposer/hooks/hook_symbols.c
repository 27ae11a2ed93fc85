/* How applications find the driver's functions: dlsym, dlopen and cuGetProcAddress. */
#include "driver/deepbind.h"
#include "driver/driver.h"

#define RTLD_DEEPBIND 8

/* Asked by the dlsym in assembly. True: `*answer_p` is the answer. False: the next dlsym is to be asked. */
bool symbols_answer(void *handle, const char *symbol, void **answer_p);

bool symbols_answer(void *handle, const char *symbol, void **answer_p) {
    driver_chain();
    if (symbol == NULL || !((symbol[0] == 'c' && symbol[1] == 'u') || (symbol[0] == 'n' && symbol[1] == 'v')))
        return false;
    const hook_row_t *row = hooks_find(symbol);
    if (row == NULL)
        return false;
    /* A function that this driver does not have stays absent: applications probe for features that way. The failed
     * lookup has left its sentence for dlerror. */
    *answer_p = driver_lookup(handle, row) != NULL ? row->replacement : NULL;
    return true;
}

/* Asked by the dlopen in assembly. True: `*answer_p` is the answer. False: the next dlopen is to be asked, with this
 * mode. */
bool symbols_open(const char *file, int *mode, void **answer_p, const replaced_t *replaced);

bool symbols_open(const char *file, int *mode, void **answer_p, const replaced_t *replaced) {
    driver_chain();
    if (!(*mode & RTLD_DEEPBIND))
        return false;
    if (deepbind_open(file, *mode, answer_p, replaced))
        return true;
    *mode &= ~RTLD_DEEPBIND;
    return false;
}

/* The driver alone knows which form a name, a version and flags mean; what it gives is looked up, never the name. */
static CUresult replace(CUresult result, void **function) {
    if (result == CUDA_SUCCESS && function != NULL && *function != NULL) {
        void *hook = driver_hook_for(*function);
        if (hook != NULL)
            *function = hook;
    }
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    return replace(REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status), function);
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    return replace(REAL(cuGetProcAddress)(symbol, function, version, flags), function);
}
