#include "driver/refusal.h"

#include <stdbool.h>

#include "base/report.h"

CUresult refusal(hook_t hook, const char *what) {
    static bool reported[HOOK_COUNT];
    if (!__atomic_exchange_n(&reported[hook], true, __ATOMIC_RELAXED))
        report("%s is refused: %s cannot be held to the limits of this container; give the pod a whole GPU, or change "
               "the program",
               hook_rows[hook].symbol, what);
    return CUDA_ERROR_NOT_SUPPORTED;
}

void refusal_unknown(const char *symbol, const char *how) {
    static bool reported;
    if (!__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
        report("%s is refused: for %s the driver returns a function that this library does not know and cannot hold to "
               "the limits of this container; upgrade gpushare, or give the pod a whole GPU",
               symbol, how);
}
