/* Which launches are recorded into a graph and not done. While anything in this process is being captured, some calls
 * would break the capture, so they are not made. */
#ifndef GPUSHARE_CAPTURE_H
#define GPUSHARE_CAPTURE_H

#include <stdbool.h>

#include "abi.h"

/* Whether a launch in this stream would be recorded. */
bool capture_has(CUstream stream);

/* Whether anything is being captured. */
bool capture_any(void);

/* The context has ended, and with it the captures of its streams. */
void capture_forget(CUcontext context);

#endif
