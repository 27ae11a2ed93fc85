/* Copies in one to three dimensions, and fills. They take no time. A synchronous one waits for all earlier work. One
 * in a stream is done at once or, while streams have actions queued, in stream order. In a capture it becomes a
 * node. The contents of arrays are not simulated. */
#include "cuda/copy/copy.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/device/context.h"
#include "cuda/graph/graph.h"
#include "cuda/memory/pointer.h"
#include "cuda/stream/action.h"
#include "cuda/stream/stream.h"

static void *address(CUdeviceptr pointer) {
    return (void *)(uintptr_t)pointer;
}

static void copy_do(void *what) {
    const copy_t *copy = what;
    for (size_t z = 0; z < copy->depth; z++) {
        for (size_t y = 0; y < copy->height; y++) {
            char *to = (char *)address(copy->to) + z * copy->to_slice + y * copy->to_pitch;
            const char *from = (const char *)address(copy->from) + z * copy->from_slice + y * copy->from_pitch;
            memmove(to, from, copy->width);
        }
    }
}

static void fill_do(void *what) {
    const fill_t *fill = what;
    for (size_t y = 0; y < fill->height; y++) {
        char *row = (char *)address(fill->to) + y * fill->pitch;
        if (fill->element == 1)
            memset(row, (int)fill->value, fill->width);
        for (size_t x = 0; x < fill->width && fill->element > 1; x++)
            memcpy(row + x * fill->element, &fill->value, fill->element);
    }
}

static bool is_accessible(CUdeviceptr start, size_t bytes, side_t side) {
    memory_place_t place;
    if (start == 0)
        return false;
    return side == SIDE_HOST || (side == SIDE_ANY && !pointer_find(start, &place)) || pointer_range(start, bytes);
}

static size_t span(size_t width, size_t height, size_t depth, size_t pitch, size_t slice) {
    return (depth - 1) * slice + (height - 1) * pitch + width;
}

bool copy_allowed(const copy_t *copy, side_t to, side_t from) {
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0)
        return true;
    return is_accessible(copy->to, span(copy->width, copy->height, copy->depth, copy->to_pitch, copy->to_slice), to) &&
           is_accessible(copy->from, span(copy->width, copy->height, copy->depth, copy->from_pitch, copy->from_slice),
                         from);
}

bool fill_allowed(const fill_t *fill) {
    if (fill->width == 0 || fill->height == 0)
        return true;
    return fill->to % fill->element == 0 &&
           is_accessible(fill->to, span(fill->width * fill->element, fill->height, 1, fill->pitch, 0), SIDE_DEVICE);
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

/* Wait for all earlier work of the context, then do this in the calling thread. */
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
    void *argument = malloc(works[work].bytes);
    if (argument == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(argument, what, works[work].bytes);
    return stream_enqueue(context, stream, false, ACTOR_GPU, works[work].act, argument);
}

static CUresult copy_now(CUdeviceptr to, side_t to_side, CUdeviceptr from, side_t from_side, size_t bytes) {
    copy_t copy = {.to = to, .from = from, .width = bytes, .height = 1, .depth = 1};
    return copy_allowed(&copy, to_side, from_side) ? work_now(WORK_COPY, &copy) : CUDA_ERROR_INVALID_VALUE;
}

/* Device memory is not checked in a capture: a graph may allocate it later. */
static CUresult copy_in(CUdeviceptr to, side_t to_side, CUdeviceptr from, side_t from_side, size_t bytes,
                        CUstream stream) {
    copy_t copy = {.to = to, .from = from, .width = bytes, .height = 1, .depth = 1};
    bool capturing = stream_is_capturing(stream);
    return copy_allowed(&copy, capturing ? SIDE_HOST : to_side, capturing ? SIDE_HOST : from_side)
               ? work_in(WORK_COPY, &copy, stream)
               : CUDA_ERROR_INVALID_VALUE;
}

static CUdeviceptr host_address(const void *pointer) {
    return (CUdeviceptr)(uintptr_t)pointer;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(to, SIDE_ANY, from, SIDE_ANY, bytes);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy_now(to, SIDE_DEVICE, host_address(from), SIDE_HOST, bytes);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy_now(host_address(to), SIDE_HOST, from, SIDE_DEVICE, bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(to, SIDE_DEVICE, from, SIDE_DEVICE, bytes);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
    (void)to_context;
    (void)from_context;
    return copy_now(to, SIDE_DEVICE, from, SIDE_DEVICE, bytes);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(to, SIDE_ANY, from, SIDE_ANY, bytes, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy_in(to, SIDE_DEVICE, host_address(from), SIDE_HOST, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(host_address(to), SIDE_HOST, from, SIDE_DEVICE, bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_in(to, SIDE_DEVICE, from, SIDE_DEVICE, bytes, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream) {
    (void)to_context;
    (void)from_context;
    return copy_in(to, SIDE_DEVICE, from, SIDE_DEVICE, bytes, stream);
}

/* Fills with elements of 1, 2 and 4 bytes, in one and two dimensions. */

static CUresult fill_now(fill_t fill) {
    return fill_allowed(&fill) ? work_now(WORK_FILL, &fill) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fill_in(fill_t fill, CUstream stream) {
    return stream_is_capturing(stream) || fill_allowed(&fill) ? work_in(WORK_FILL, &fill, stream)
                                                              : CUDA_ERROR_INVALID_VALUE;
}

/* For one element size: one and two dimensions, synchronous and in a stream. */
#define FILLS(bits, type)                                                                                              \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count) {                                          \
        return fill_now((fill_t){to, 0, value, bits / 8, count, 1});                                                   \
    }                                                                                                                  \
    CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {                       \
        return fill_in((fill_t){to, 0, value, bits / 8, count, 1}, stream);                                            \
    }                                                                                                                  \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) {           \
        return fill_now((fill_t){to, pitch, value, bits / 8, width, height});                                          \
    }                                                                                                                  \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,           \
                                      CUstream stream) {                                                               \
        return fill_in((fill_t){to, pitch, value, bits / 8, width, height}, stream);                                   \
    }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)

#define ARRAY 3

static bool has_array(int from, int to) {
    return from == ARRAY || to == ARRAY;
}

static side_t side(int type) {
    return type == 1 ? SIDE_HOST : type == 2 ? SIDE_DEVICE : SIDE_ANY;
}

static CUdeviceptr start(int type, const void *host, CUdeviceptr device) {
    return type == 1 ? (CUdeviceptr)(uintptr_t)host : device; /* a unified address is in the device field */
}

static CUresult shape_2d(const CUDA_MEMCPY2D *two, copy_t *copy) {
    if (two == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (has_array(two->srcMemoryType, two->dstMemoryType))
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t from_pitch = two->srcPitch != 0 ? two->srcPitch : two->WidthInBytes;
    size_t to_pitch = two->dstPitch != 0 ? two->dstPitch : two->WidthInBytes;
    *copy = (copy_t){
        .to = start(two->dstMemoryType, two->dstHost, two->dstDevice) + two->dstY * to_pitch + two->dstXInBytes,
        .from = start(two->srcMemoryType, two->srcHost, two->srcDevice) + two->srcY * from_pitch + two->srcXInBytes,
        .width = two->WidthInBytes,
        .height = two->Height,
        .depth = 1,
        .to_pitch = to_pitch,
        .from_pitch = from_pitch,
    };
    bool fits = from_pitch >= two->WidthInBytes && to_pitch >= two->WidthInBytes;
    return fits && copy_allowed(copy, side(two->dstMemoryType), side(two->srcMemoryType)) ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_shape_3d(const CUDA_MEMCPY3D *three, copy_t *copy) {
    if (three == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (has_array(three->srcMemoryType, three->dstMemoryType))
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t from_pitch = three->srcPitch != 0 ? three->srcPitch : three->WidthInBytes;
    size_t to_pitch = three->dstPitch != 0 ? three->dstPitch : three->WidthInBytes;
    size_t from_slice = from_pitch * (three->srcHeight != 0 ? three->srcHeight : three->Height);
    size_t to_slice = to_pitch * (three->dstHeight != 0 ? three->dstHeight : three->Height);
    *copy = (copy_t){
        .to = start(three->dstMemoryType, three->dstHost, three->dstDevice) + three->dstZ * to_slice +
              three->dstY * to_pitch + three->dstXInBytes,
        .from = start(three->srcMemoryType, three->srcHost, three->srcDevice) + three->srcZ * from_slice +
                three->srcY * from_pitch + three->srcXInBytes,
        .width = three->WidthInBytes,
        .height = three->Height,
        .depth = three->Depth,
        .to_pitch = to_pitch,
        .from_pitch = from_pitch,
        .to_slice = to_slice,
        .from_slice = from_slice,
    };
    bool fits = from_pitch >= three->WidthInBytes && to_pitch >= three->WidthInBytes;
    return fits && copy_allowed(copy, side(three->dstMemoryType), side(three->srcMemoryType))
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *two) {
    copy_t copy;
    CUresult result = shape_2d(two, &copy);
    return result == CUDA_SUCCESS ? work_now(WORK_COPY, &copy) : result;
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *two) {
    return cuMemcpy2D_v2(two);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *two, CUstream stream) {
    copy_t copy;
    CUresult result = shape_2d(two, &copy);
    return result == CUDA_SUCCESS ? work_in(WORK_COPY, &copy, stream) : result;
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *three) {
    copy_t copy;
    CUresult result = copy_shape_3d(three, &copy);
    return result == CUDA_SUCCESS ? work_now(WORK_COPY, &copy) : result;
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *three, CUstream stream) {
    copy_t copy;
    CUresult result = copy_shape_3d(three, &copy);
    return result == CUDA_SUCCESS ? work_in(WORK_COPY, &copy, stream) : result;
}
