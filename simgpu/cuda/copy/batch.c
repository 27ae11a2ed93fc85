/* Batches of copies. Each copy is done on its own: CUDA promises no order within a batch. */
#include "cuda/copy/batch.h"

#include "cuda/copy/copy.h"
#include "cuda/device/device.h"
#include "cuda/stream/stream.h"

#define POINTER 1
#define MAX_COPY_FLAGS 1u /* a hint */

enum { ORDER_STREAM = 1, ORDER_DURING_CALL = 2, ORDER_ANY = 3 };

static bool is_order(int order) {
    return order >= ORDER_STREAM && order <= ORDER_ANY;
}

/* If the source may change after the call, wait for the stream and copy now. */
static CUresult queue_copy(copy_t *copy, int order, CUstream stream) {
    if (order == ORDER_DURING_CALL && !stream_is_capturing(stream)) {
        CUresult result = cuStreamSynchronize(stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    side_t side = stream_is_capturing(stream) ? SIDE_HOST : SIDE_ANY;
    return copy_allowed(copy, side, side) ? work_in(WORK_COPY, copy, stream) : CUDA_ERROR_INVALID_VALUE;
}

bool batch_indexed(const size_t *first, size_t sets, size_t count) {
    bool fine = first != NULL && sets > 0 && sets <= count && first[0] == 0;
    for (size_t i = 1; fine && i < sets; i++)
        fine = first[i] > first[i - 1] && first[i] < count;
    return fine;
}

CUresult batch_stream(CUstream stream) {
    return stream == NULL || stream == LEGACY ? CUDA_ERROR_INVALID_VALUE : driver_ready();
}

static bool are_attributes(const CUmemcpyAttributes *attributes, size_t sets) {
    bool fine = attributes != NULL;
    for (size_t i = 0; fine && i < sets; i++)
        fine = is_order(attributes[i].srcAccessOrder) && attributes[i].flags <= MAX_COPY_FLAGS;
    return fine;
}

/* `failed_p`: the index of the copy that failed. */
static CUresult copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count,
                           const CUmemcpyAttributes *attributes, const size_t *first, size_t sets, size_t *failed_p,
                           CUstream stream) {
    CUresult result = batch_stream(stream);
    *failed_p = SIZE_MAX;
    if (to == NULL || from == NULL || sizes == NULL || !batch_indexed(first, sets, count) ||
        !are_attributes(attributes, sets))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, set = 0; i < count && result == CUDA_SUCCESS; i++) {
        copy_t copy = {.to = to[i], .from = from[i], .width = sizes[i], .height = 1, .depth = 1};
        if (set + 1 < sets && first[set + 1] == i)
            set++;
        result = queue_copy(&copy, attributes[set].srcAccessOrder, stream);
        if (result != CUDA_SUCCESS)
            *failed_p = i;
    }
    return result;
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *first, size_t sets, CUstream stream) {
    size_t failed;
    return copy_batch(to, from, sizes, count, attributes, first, sets, &failed, stream);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attributes, size_t *first, size_t sets, size_t *failed,
                            CUstream stream) {
    size_t unwanted;
    return copy_batch(to, from, sizes, count, attributes, first, sets, failed != NULL ? failed : &unwanted, stream);
}

static size_t row_of(const CUmemcpy3DOperand *operand, size_t width) {
    return operand->op.ptr.rowLength != 0 ? operand->op.ptr.rowLength : width;
}

static size_t slice_of(const CUmemcpy3DOperand *operand, size_t width, size_t height) {
    return row_of(operand, width) * (operand->op.ptr.layerHeight != 0 ? operand->op.ptr.layerHeight : height);
}

/* The contents of arrays are not simulated. */
static CUresult queue_copy_3d(const CUDA_MEMCPY3D_BATCH_OP *one, CUstream stream) {
    size_t width = one->extent.width, height = one->extent.height, depth = one->extent.depth;
    if (width == 0 || height == 0 || depth == 0 || !is_order(one->srcAccessOrder) || one->flags > MAX_COPY_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (one->src.type != POINTER || one->dst.type != POINTER)
        return CUDA_ERROR_NOT_SUPPORTED;
    copy_t copy = {
        .to = one->dst.op.ptr.ptr,
        .from = one->src.op.ptr.ptr,
        .width = width,
        .height = height,
        .depth = depth,
        .to_pitch = row_of(&one->dst, width),
        .from_pitch = row_of(&one->src, width),
        .to_slice = slice_of(&one->dst, width, height),
        .from_slice = slice_of(&one->src, width, height),
    };
    bool fits = copy.to_pitch >= width && copy.from_pitch >= width && copy.to_slice >= copy.to_pitch * height &&
                copy.from_slice >= copy.from_pitch * height;
    return fits ? queue_copy(&copy, one->srcAccessOrder, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed, unsigned long long flags,
                              CUstream stream) {
    CUresult result = batch_stream(stream);
    size_t unwanted, *failed_p = failed != NULL ? failed : &unwanted;
    *failed_p = SIZE_MAX;
    if (copies == NULL || count == 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = queue_copy_3d(&copies[i], stream);
        if (result != CUDA_SUCCESS)
            *failed_p = i;
    }
    return result;
}

CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags,
                                 CUstream stream) {
    return cuMemcpy3DBatchAsync(count, copies, NULL, flags, stream);
}
