/* Refuses calls whose memory or work cannot be counted, with a message. A program that stops is better than a share
 * that silently exceeds its limits. */
#ifndef GPUSHARE_REFUSAL_H
#define GPUSHARE_REFUSAL_H

#include "driver/hooks.h"

/* Return CUDA_ERROR_NOT_SUPPORTED, and report the function and `what` once per function. */
CUresult refusal(hook_t hook, const char *what);

/* Report, once per process, an unknown function under the name of one that is held to the limits. */
void refusal_unknown(const char *symbol, const char *how);

#endif
