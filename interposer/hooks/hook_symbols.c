/* How applications find the driver's functions: dlsym, dlopen and cuGetProcAddress. */
#include <stdio.h>

#include "driver/deepbind.h"
#include "driver/driver.h"
#include "driver/refusal.h"

#define RTLD_DEEPBIND 8

/* A variant of a hooked function that is newer than this library would bypass the limits. */
static bool refuse_unknown(void *handle, const char *symbol, void **answer_p) {
    if (!hooks_is_variant(symbol) || !driver_has_symbol(handle, symbol))
        return false;
    refusal_unknown(symbol, "dlsym");
    driver_fail_lookup(handle, symbol);
    *answer_p = NULL;
    return true;
}

/* Called by dlsym in assembly. Returns true with the result in `*answer_p`, or false to continue with the next
 * dlsym. */
bool symbols_answer(void *handle, const char *symbol, void **answer_p);

bool symbols_answer(void *handle, const char *symbol, void **answer_p) {
    driver_chain();
    if (symbol == NULL || !((symbol[0] == 'c' && symbol[1] == 'u') || (symbol[0] == 'n' && symbol[1] == 'v')))
        return false;
    const hook_row_t *row = hooks_find(symbol);
    if (row == NULL)
        return refuse_unknown(handle, symbol, answer_p);
    /* A function that this driver lacks must not be found, because applications probe for features this way. The
     * failed lookup has set dlerror. */
    *answer_p = driver_lookup(handle, row);
    return true;
}

/* Called by dlopen in assembly. Returns true with the result in `*answer_p`, or false to continue with the next
 * dlopen and this mode. */
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

/* Only the driver knows which variant a name, version and flags select, so its result is looked up by address. If
 * the name is in the table but the address is not, the function would bypass the limits. The CUDA runtime can do
 * without it, as with older drivers. */
static CUresult replace(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    if (function == NULL || *function == NULL)
        return CUDA_SUCCESS;
    void *hook = driver_hook_for(*function);
    if (hook == NULL && hooks_is_variant(symbol)) {
        char how[96];
        (void)snprintf(how, sizeof how, "cuGetProcAddress(version %d, flags %llu)", version, (unsigned long long)flags);
        refusal_unknown(symbol, how);
        *function = NULL;
        if (status != NULL)
            *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        return CUDA_ERROR_NOT_FOUND;
    }
    if (hook != NULL)
        *function = hook;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    return result == CUDA_SUCCESS ? replace(symbol, function, version, flags, status) : result;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    return result == CUDA_SUCCESS ? replace(symbol, function, version, flags, NULL) : result;
}
