/* Which launches are recorded into a graph and not done. While anything in this process is being captured, some calls
 * would break the capture, so they are not made. */
#ifndef GPUSHARE_CAPTURE_H
#define GPUSHARE_CAPTURE_H

#include <stdbool.h>

#include "base/abi.h"

/* Whether a launch in this stream would be recorded. */
bool capture_includes(CUstream stream);

/* Whether anything is being captured. */
bool capture_any(void);

/* Around what we ask the driver in a thread of the program's: no capture of another thread is broken by it, which may
 * begin at any moment. What the first returns is for the second. */
typedef struct {
    int mode;
    bool changed;
} capture_mode_t;
capture_mode_t capture_relax(void);
void capture_restore_mode(capture_mode_t relaxed);

/* Around the call that begins a capture: it counts from before the driver is asked, so that nothing that would break it
 * is under way when it begins. What the first returns is for the second. */
CUcontext capture_starting(CUstream stream);
void capture_started(CUstream stream, CUcontext context, bool begun);

/* The capture that began in this stream has ended. */
void capture_ended(CUstream stream);

/* Around the end of a stream: its capture is taken out, then it is over, or given back when the stream goes on. */
typedef struct {
    CUstream stream;
    CUcontext context;
    bool is; /* there is one */
} capture_t;
capture_t capture_begin_destroy(CUstream stream);
void capture_end_destroy(const capture_t *capture, bool ended);

/* The context has ended, and with it the captures of its streams. */
void capture_drop(CUcontext context);

#endif
