/* Copies in one dimension. They take no time: one that the program waits for waits for what was launched before, one in
 * a stream is done when it is put there, or when the errands before it are. In a capture it becomes a node. */
#include "cuda_copy.h"

#include <string.h>

#include "cuda_errand.h"
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

bool copy_allowed(const copy_t *copy) {
    return copy->width == 0 || copy->height == 0 || copy->depth == 0 || (copy->to != 0 && copy->from != 0);
}

bool fill_allowed(const fill_t *fill) {
    return fill->width == 0 || fill->height == 0 || (fill->to != 0 && fill->to % fill->element == 0);
}

static const struct {
    errand_kind_t kind;
    size_t bytes;
} works[] = {
    [WORK_COPY] = {{.act = copy_do}, sizeof(copy_t)},
    [WORK_FILL] = {{.act = fill_do}, sizeof(fill_t)},
};

/* Of this thread: what was launched before has ended. */
CUresult work_now(work_t work, void *what) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS)
        return result;
    errand_wait_context(context);
    timeline_wait(context->gpu, context->last_mark);
    works[work].kind.act(what);
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
    const stream_point_t point = {context, stream_end(context, stream, false)};
    if (errand_last(point.end) == 0)
        works[work].kind.act(what);
    else if (errand_queue(&point, &works[work].kind, what, works[work].bytes) == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static CUresult copy_now(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    copy_t copy = {.to = to, .from = from, .width = bytes, .height = 1, .depth = 1};
    return copy_allowed(&copy) ? work_now(WORK_COPY, &copy) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_in(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    copy_t copy = {.to = to, .from = from, .width = bytes, .height = 1, .depth = 1};
    return copy_allowed(&copy) ? work_in(WORK_COPY, &copy, stream) : CUDA_ERROR_INVALID_VALUE;
}

static CUdeviceptr of_host(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(to, from, bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy_now(to, of_host(from), bytes);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy_now(of_host(to), from, bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(to, from, bytes);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
    (void)to_context;
    (void)from_context;
    return copy_now(to, from, bytes);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(to, from, bytes, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy_in(to, of_host(from), bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(of_host(to), from, bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(to, from, bytes, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream) {
    (void)to_context;
    (void)from_context;
    return copy_in(to, from, bytes, stream);
}
