/* Saying no to what is not accounted yet, aloud: a share that grows in silence is worse than a program that stops. */
#ifndef GPUSHARE_REFUSAL_H
#define GPUSHARE_REFUSAL_H

#include "driver/hooks.h"

/* CUDA_ERROR_NOT_SUPPORTED, and for each function once a line that names it and what it asked for. */
CUresult refusal(hook_t hook, const char *what);

/* Reports, once in a process, a function under a name that is held to the limits, which is none of the table. */
void refusal_unknown(const char *symbol, const char *how);

#endif
