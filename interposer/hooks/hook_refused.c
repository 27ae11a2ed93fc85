/* The functions that are refused altogether. They take any arguments: none is looked at. */
#include "driver/hooks.h"
#include "driver/refusal.h"

#define HOOK(library, symbol, returns, parameters)
#define NEED(library, symbol, returns, parameters)
#define LAUNCH(library, symbol, stream)
#define REFUSE(symbol, what)                                                                                           \
    CUresult symbol(void) {                                                                                            \
        return refusal(HOOK_##symbol, what);                                                                           \
    }
#include "driver/hooks.def"
