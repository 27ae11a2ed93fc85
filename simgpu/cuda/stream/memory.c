/* Allocation and freeing in stream order, from memory pools. In a capture they become nodes of the graph. */
#include "cuda/memory/memory.h"
#include "cuda/device/context.h"
#include "cuda/graph/graph.h"
#include "cuda/stream/action.h"
#include "cuda/stream/stream.h"

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = cuStreamGetCtx(stream, &context);
    if (result == CUDA_SUCCESS)
        result = context_usable(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0 || bytes > SIZE_MAX / 2 || (pool != NULL && (pool->destroyed || pool->imported)))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph *capture = stream_capture(stream);
    if (capture != NULL && *capture != NULL)
        return graph_allocate(*capture, context->device, bytes, pointer, NULL);
    if (pool == NULL)
        pool = pool_current(context->gpu, false);
    if (!pool_reserve(pool, bytes, stream_end(context, stream, per_thread)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (pool_map(pool, bytes, pointer))
        return CUDA_SUCCESS;
    pool_release(&(allocation_t){.pool = pool, .bytes = bytes, .memory = -1}, NULL);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(pointer, bytes, NULL, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return allocate(pointer, bytes, NULL, stream, true);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return pool != NULL ? allocate(pointer, bytes, pool, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return pool != NULL ? allocate(pointer, bytes, pool, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_in(CUdeviceptr pointer, CUstream stream, bool per_thread) {
    CUcontext context;
    CUresult result = cuStreamGetCtx(stream, &context);
    if (result == CUDA_SUCCESS)
        result = context_usable(context);
    if (result != CUDA_SUCCESS || pointer == 0)
        return result;
    CUgraph *capture = stream_capture(stream);
    if (capture != NULL && *capture != NULL)
        return graph_free(*capture, pointer);
    const _Atomic uint64_t *end = stream_end(context, stream, per_thread);
    const free_point_t point = {.stream = (const void *)end, .gpu = context->gpu, .mark = *end};
    return memory_free(pointer, &point);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    return free_in(pointer, stream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
    return free_in(pointer, stream, true);
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUcontext context;
    CUresult result = context_current(&context);
    if (result != CUDA_SUCCESS || pointer == 0)
        return result;
    if (stream_actions_pending()) /* they may include copies */
        timeline_wait(context->gpu, context->last_mark);
    return memory_free(pointer, NULL);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer) {
    return cuMemFree_v2(pointer);
}
