/* Stream captures, whose launches are recorded into a graph and not executed. While the process captures anything,
 * the library makes no call that would break the capture. */
#ifndef GPUSHARE_CAPTURE_H
#define GPUSHARE_CAPTURE_H

#include <stdbool.h>

#include "base/abi.h"

/* Whether a launch in this stream would be recorded. */
bool capture_includes(CUstream stream);

/* Whether the process is capturing anything. */
bool capture_any(void);

/* Around our own calls to the driver in an application's thread, so that they do not break another thread's capture,
 * which may begin at any moment. Pass the result of the first to the second. */
typedef struct {
    int mode;
    bool changed;
} capture_mode_t;
capture_mode_t capture_relax(void);
void capture_restore_mode(capture_mode_t relaxed);

/* Around the call that begins a capture. It counts before the call, so that no call of ours that would break it is
 * in progress when it begins. Pass the result of the first to the second. */
CUcontext capture_starting(CUstream stream);
void capture_started(CUstream stream, CUcontext context, bool begun);

/* The capture that began in this stream has ended. */
void capture_ended(CUstream stream);

/* Around a stream's destruction, which ends the stream's capture; if it fails, the capture continues. */
typedef struct {
    CUstream stream;
    CUcontext context;
    bool found; /* whether there is a capture */
} capture_t;
capture_t capture_begin_destroy(CUstream stream);
void capture_end_destroy(const capture_t *capture, bool ended);

/* The context has ended, and the captures of its streams with it. */
void capture_drop(CUcontext context);

#endif
