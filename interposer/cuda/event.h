/* Our own events in the program's contexts, to query whether earlier work has ended. */
#ifndef GPUSHARE_EVENT_H
#define GPUSHARE_EVENT_H

#include "driver/hooks.h"

/* Create an event without timing in this context, which need not be current. */
CUresult event_create(CUcontext context, CUevent *event);

#endif
