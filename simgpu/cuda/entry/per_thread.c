/* The forms for per-thread default streams, in which the handle 0 means the thread's own stream. Synchronous calls
 * are the same as the ordinary ones. */
#include "cuda/stream/stream.h"

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) {
    return cuEventRecordWithFlags(event, stream_of(stream, true), flags);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    return cuGraphInstantiateWithParams(exec, graph, parameters);
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data) {
    return cuLaunchHostFunc(stream_of(stream, true), function, data);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    return cuMemPrefetchAsync(pointer, bytes, device, stream_of(stream, true));
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags,
                                    CUstream stream) {
    return cuMemPrefetchAsync_v2(pointer, bytes, location, flags, stream_of(stream, true));
}

CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *two, CUstream stream) {
    return cuMemcpy2DAsync_v2(two, stream_of(stream, true));
}

CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *two) {
    return cuMemcpy2DUnaligned_v2(two);
}

CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *two) {
    return cuMemcpy2D_v2(two);
}

CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *three, CUstream stream) {
    return cuMemcpy3DAsync_v2(three, stream_of(stream, true));
}

CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *three) {
    return cuMemcpy3D_v2(three);
}

CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return cuMemcpyAsync(to, from, bytes, stream_of(stream, true));
}

CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream_of(stream, true));
}

CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return cuMemcpyDtoD_v2(to, from, bytes);
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return cuMemcpyDtoHAsync_v2(to, from, bytes, stream_of(stream, true));
}

CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) {
    return cuMemcpyDtoH_v2(to, from, bytes);
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, stream_of(stream, true));
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes) {
    return cuMemcpyHtoD_v2(to, from, bytes);
}

CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                size_t bytes, CUstream stream) {
    return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, stream_of(stream, true));
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           size_t bytes) {
    return cuMemcpyPeer(to, to_context, from, from_context, bytes);
}

CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return cuMemcpy(to, from, bytes);
}

CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return cuMemsetD16Async(to, value, count, stream_of(stream, true));
}

CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) {
    return cuMemsetD16_v2(to, value, count);
}

CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                                 CUstream stream) {
    return cuMemsetD2D16Async(to, pitch, value, width, height, stream_of(stream, true));
}

CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
    return cuMemsetD2D16_v2(to, pitch, value, width, height);
}

CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                                 CUstream stream) {
    return cuMemsetD2D32Async(to, pitch, value, width, height, stream_of(stream, true));
}

CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
    return cuMemsetD2D32_v2(to, pitch, value, width, height);
}

CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                                CUstream stream) {
    return cuMemsetD2D8Async(to, pitch, value, width, height, stream_of(stream, true));
}

CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
    return cuMemsetD2D8_v2(to, pitch, value, width, height);
}

CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return cuMemsetD32Async(to, value, count, stream_of(stream, true));
}

CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned value, size_t count) {
    return cuMemsetD32_v2(to, value, count);
}

CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return cuMemsetD8Async(to, value, count, stream_of(stream, true));
}

CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) {
    return cuMemsetD8_v2(to, value, count);
}

CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback function, void *data, unsigned flags) {
    return cuStreamAddCallback(stream_of(stream, true), function, data, flags);
}

CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags) {
    return cuStreamAttachMemAsync(stream_of(stream, true), pointer, bytes, flags);
}

CUresult cuStreamBatchMemOp_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations,
                                 unsigned flags) {
    return cuStreamBatchMemOp(stream_of(stream, true), count, operations, flags);
}

CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations,
                                    unsigned flags) {
    return cuStreamBatchMemOp_v2(stream_of(stream, true), count, operations, flags);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *before, const void *edges,
                                          size_t count, int mode) {
    return cuStreamBeginCaptureToGraph(stream_of(stream, true), graph, before, edges, count, mode);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return cuStreamBeginCapture(stream_of(stream, true));
}

CUresult cuStreamCopyAttributes_ptsz(CUstream to, CUstream from) {
    return cuStreamCopyAttributes(to, from);
}

CUresult cuStreamGetAttribute_ptsz(CUstream stream, int attribute, void *value) {
    return cuStreamGetAttribute(stream_of(stream, true), attribute, value);
}

CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo(stream_of(stream, true), status, id);
}

CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                        const CUgraphNode **before, size_t *count) {
    return cuStreamGetCaptureInfo_v2(stream_of(stream, true), status, id, graph, before, count);
}

CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, int *status, uint64_t *id, CUgraph *graph,
                                        const CUgraphNode **before, const void **edges, size_t *count) {
    return cuStreamGetCaptureInfo_v3(stream_of(stream, true), status, id, graph, before, edges, count);
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context) {
    return cuStreamGetCtx(stream_of(stream, true), context);
}

CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green) {
    return cuStreamGetCtx_v2(stream_of(stream, true), context, green);
}

CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device) {
    return cuStreamGetDevice(stream_of(stream, true), device);
}

CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned *flags) {
    return cuStreamGetFlags(stream_of(stream, true), flags);
}

CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id) {
    return cuStreamGetId(stream_of(stream, true), id);
}

CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority) {
    return cuStreamGetPriority(stream_of(stream, true), priority);
}

CUresult cuStreamSetAttribute_ptsz(CUstream stream, int attribute, const void *value) {
    return cuStreamSetAttribute(stream_of(stream, true), attribute, value);
}

CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags) {
    return cuStreamUpdateCaptureDependencies(stream_of(stream, true), nodes, count, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *nodes, const void *edges, size_t count,
                                                   unsigned flags) {
    return cuStreamUpdateCaptureDependencies_v2(stream_of(stream, true), nodes, edges, count, flags);
}

CUresult cuStreamWaitValue32_ptsz(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return cuStreamWaitValue32(stream_of(stream, true), address, value, flags);
}

CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return cuStreamWaitValue32_v2(stream_of(stream, true), address, value, flags);
}

CUresult cuStreamWaitValue64_ptsz(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return cuStreamWaitValue64(stream_of(stream, true), address, value, flags);
}

CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return cuStreamWaitValue64_v2(stream_of(stream, true), address, value, flags);
}

CUresult cuStreamWriteValue32_ptsz(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return cuStreamWriteValue32(stream_of(stream, true), address, value, flags);
}

CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    return cuStreamWriteValue32_v2(stream_of(stream, true), address, value, flags);
}

CUresult cuStreamWriteValue64_ptsz(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return cuStreamWriteValue64(stream_of(stream, true), address, value, flags);
}

CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    return cuStreamWriteValue64_v2(stream_of(stream, true), address, value, flags);
}

CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *attributes, size_t *first, size_t sets, size_t *failed,
                                 CUstream stream) {
    return cuMemcpyBatchAsync(to, from, sizes, count, attributes, first, sets, failed, stream_of(stream, true));
}

CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attributes, size_t *first, size_t sets, CUstream stream) {
    return cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, first, sets, stream_of(stream, true));
}

CUresult cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, size_t *failed,
                                   unsigned long long flags, CUstream stream) {
    return cuMemcpy3DBatchAsync(count, copies, failed, flags, stream_of(stream, true));
}

CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *copies, unsigned long long flags,
                                      CUstream stream) {
    return cuMemcpy3DBatchAsync_v2(count, copies, flags, stream_of(stream, true));
}

CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *locations,
                                      size_t *first, size_t sets, unsigned long long flags, CUstream stream) {
    return cuMemPrefetchBatchAsync(pointers, sizes, count, locations, first, sets, flags, stream_of(stream, true));
}

CUresult cuMemDiscardBatchAsync_ptsz(CUdeviceptr *pointers, size_t *sizes, size_t count, unsigned long long flags,
                                     CUstream stream) {
    return cuMemDiscardBatchAsync(pointers, sizes, count, flags, stream_of(stream, true));
}

CUresult cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr *pointers, size_t *sizes, size_t count,
                                                CUmemLocation *locations, size_t *first, size_t sets,
                                                unsigned long long flags, CUstream stream) {
    return cuMemDiscardAndPrefetchBatchAsync(pointers, sizes, count, locations, first, sets, flags,
                                             stream_of(stream, true));
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *callback, void *data) {
    return cuStreamBeginRecaptureToGraph(stream_of(stream, true), mode, graph, callback, data);
}
