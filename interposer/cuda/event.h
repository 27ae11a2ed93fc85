/* Events of ours in a context of the program's, to learn when the work before them has ended. */
#ifndef GPUSHARE_EVENT_H
#define GPUSHARE_EVENT_H

#include "driver/hooks.h"

/* An event without a time, in this context, which need not be the current one. */
CUresult event_create(CUcontext context, CUevent *event);

#endif
