/* Copies in one dimension. They take no time: one that the program waits for waits for what was launched before, one in
 * a stream is done when it is put there, or, while streams wait for something else than kernels, in its turn. In a
 * capture it becomes a node. */
#include "cuda_copy.h"

#include <stdlib.h>
#include <string.h>

#include "timeline.h"

static void *address(CUdeviceptr pointer) {
    return (void *)(uintptr_t)pointer;
}

void copy_do(void *what) {
    const copy_t *copy = what;
    for (size_t z = 0; z < copy->depth; z++) {
        for (size_t y = 0; y < copy->height; y++) {
            char *to = (char *)address(copy->to) + z * copy->to_slice + y * copy->to_pitch;
            const char *from = (const char *)address(copy->from) + z * copy->from_slice + y * copy->from_pitch;
            memmove(to, from, copy->width);
        }
    }
}

void fill_do(void *what) {
    const fill_t *fill = what;
    for (size_t y = 0; y < fill->height; y++) {
        char *row = (char *)address(fill->to) + y * fill->pitch;
        if (fill->element == 1)
            memset(row, (int)fill->value, fill->width);
        for (size_t x = 0; x < fill->width && fill->element > 1; x++)
            memcpy(row + x * fill->element, &fill->value, fill->element);
    }
}

static bool in_reach(CUdeviceptr start, size_t bytes, side_t side) {
    place_t place;
    if (start == 0)
        return false;
    return side == OF_HOST || (side == ANYWHERE && !pointer_place(start, &place)) || pointer_range(start, bytes);
}

static size_t span(size_t width, size_t height, size_t depth, size_t pitch, size_t slice) {
    return (depth - 1) * slice + (height - 1) * pitch + width;
}

bool copy_allowed(const copy_t *copy, side_t to, side_t from) {
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0)
        return true;
    return in_reach(copy->to, span(copy->width, copy->height, copy->depth, copy->to_pitch, copy->to_slice), to) &&
           in_reach(copy->from, span(copy->width, copy->height, copy->depth, copy->from_pitch, copy->from_slice), from);
}

bool fill_allowed(const fill_t *fill) {
    if (fill->width == 0 || fill->height == 0)
        return true;
    return fill->to % fill->element == 0 &&
           in_reach(fill->to, span(fill->width * fill->element, fill->height, 1, fill->pitch, 0), OF_DEVICE);
}

static bool copy_act(void *what) {
    copy_do(what);
    return true;
}

static bool fill_act(void *what) {
    fill_do(what);
    return true;
}

static const struct {
    stream_action_t act;
    size_t bytes;
} works[] = {
    [WORK_COPY] = {copy_act, sizeof(copy_t)},
    [WORK_FILL] = {fill_act, sizeof(fill_t)},
};

/* Of this thread: what was launched before has ended. */
CUresult work_now(work_t work, void *what) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    timeline_wait(context->gpu, context->last_mark);
    (void)works[work].act(what);
    return context_usable(context);
}

CUresult work_in(work_t work, void *what, CUstream stream) {
    CUcontext context;
    CUresult result = stream_context(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    CUgraph *capture = stream_capture(stream);
    if (capture != NULL && *capture != NULL)
        return graph_append_work(*capture, work, what) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (!stream_actions_pending() || timeline_reached(context->gpu, *stream_end(context, stream, false)))
        return works[work].act(what) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    void *kept = malloc(works[work].bytes);
    if (kept == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(kept, what, works[work].bytes);
    return stream_enqueue(context, stream, false, ACTOR_GPU, works[work].act, kept);
}

static CUresult copy_now(CUdeviceptr to, side_t to_side, CUdeviceptr from, side_t from_side, size_t bytes) {
    copy_t copy = {.to = to, .from = from, .width = bytes, .height = 1, .depth = 1};
    return copy_allowed(&copy, to_side, from_side) ? work_now(WORK_COPY, &copy) : CUDA_ERROR_INVALID_VALUE;
}

/* In a capture there may be no memory yet. */
static CUresult copy_in(CUdeviceptr to, side_t to_side, CUdeviceptr from, side_t from_side, size_t bytes,
                        CUstream stream) {
    copy_t copy = {.to = to, .from = from, .width = bytes, .height = 1, .depth = 1};
    bool capturing = stream_is_capturing(stream);
    return copy_allowed(&copy, capturing ? OF_HOST : to_side, capturing ? OF_HOST : from_side)
               ? work_in(WORK_COPY, &copy, stream)
               : CUDA_ERROR_INVALID_VALUE;
}

static CUdeviceptr of_host(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(to, ANYWHERE, from, ANYWHERE, bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy_now(to, OF_DEVICE, of_host(from), OF_HOST, bytes);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy_now(of_host(to), OF_HOST, from, OF_DEVICE, bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(to, OF_DEVICE, from, OF_DEVICE, bytes);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
    (void)to_context;
    (void)from_context;
    return copy_now(to, OF_DEVICE, from, OF_DEVICE, bytes);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(to, ANYWHERE, from, ANYWHERE, bytes, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy_in(to, OF_DEVICE, of_host(from), OF_HOST, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(of_host(to), OF_HOST, from, OF_DEVICE, bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(to, OF_DEVICE, from, OF_DEVICE, bytes, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream) {
    (void)to_context;
    (void)from_context;
    return copy_in(to, OF_DEVICE, from, OF_DEVICE, bytes, stream);
}
