/* Streams, events and graphs. */
#include <string.h>

#include "runtime.h"

API cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return RUN(cuStreamCreate, stream, 0);
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return RUN(cuStreamCreateWithPriority, stream, flags, priority);
}

API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return RUN(cuStreamDestroy, stream);
}

API cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    return RUN(cuStreamGetPriority, stream, priority);
}

API cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return RUN(cuStreamQuery, stream);
}

API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return RUN(cuStreamSynchronize, stream);
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return RUN(cuStreamWaitEvent, stream, event, flags);
}

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
    return RUN(cuStreamAddCallback, stream, (CUstreamCallback)callback, data, flags);
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    return RUN(cuLaunchHostFunc, stream, function, data);
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    return RUN(cuStreamBeginCapture, stream, (CUstreamCaptureMode)mode);
}

API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return RUN(cuStreamEndCapture, stream, graph);
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    return RUN(cuStreamIsCapturing, stream, (CUstreamCaptureStatus *)status);
}

API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **before,
                                            size_t *count) {
    return RUN(cuStreamGetCaptureInfo, stream, (CUstreamCaptureStatus *)status, (cuuint64_t *)id, graph, before, count);
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    return RUN(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *)mode);
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    return RUN(cuEventCreate, event, flags);
}

API cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return RUN(cuEventCreate, event, 0);
}

API cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return RUN(cuEventDestroy, event);
}

API cudaError_t cudaEventQuery(cudaEvent_t event) {
    return RUN(cuEventQuery, event);
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return RUN(cuEventRecord, event, stream);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return RUN(cuEventSynchronize, event);
}

API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    return RUN(cuEventElapsedTime, milliseconds, start, end);
}

API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    return RUN(cuIpcGetEventHandle, (CUipcEventHandle *)handle, event);
}

API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    CUipcEventHandle same;
    memcpy(&same, &handle, sizeof same);
    return RUN(cuIpcOpenEventHandle, event, same);
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    return RUN(cuGraphInstantiateWithFlags, exec, graph, flags);
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    return RUN(cuGraphInstantiateWithFlags, exec, graph, flags);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return RUN(cuGraphLaunch, exec, stream);
}

API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return RUN(cuGraphDestroy, graph);
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return RUN(cuGraphExecDestroy, exec);
}

API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    return RUN(cuGraphGetNodes, graph, nodes, count);
}

API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags) {
    return RUN(cuGraphDebugDotPrint, graph, path, flags);
}
