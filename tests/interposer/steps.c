/* A program that allocates GPU memory and frees it, alone and in one thread, for stepper.c to check after each
 * instruction. It prints "ready" and waits for a line before it allocates.
 *
 *   steps WAY     plain, pooled, by_handle, array, graph, with_context */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/abi/abi.h"

#define MIB (1ull << 20)
#define OWN_LIMIT (64 * MIB)

static void check(const char *what, CUresult result) {
    if (result == CUDA_SUCCESS)
        return;
    char line[128];
    int length = snprintf(line, sizeof line, "%s: %d\n", what, result);
    (void)!write(2, line, (size_t)length);
    _exit(1);
}
#define CHECK(call) check(#call, call)
#define REFUSED(call) check("refused: " #call, (call) == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN)

static void plain(void) {
    CUdeviceptr pointer, other;
    size_t pitch;
    CHECK(cuMemAlloc_v2(&pointer, 40 * MIB));
    REFUSED(cuMemAlloc_v2(&other, 25 * MIB));
    CHECK(cuMemAllocPitch_v2(&other, &pitch, 1000, 1000, 4));
    CHECK(cuMemFree_v2(other));
    CHECK(cuMemAllocManaged(&other, MIB, 1));
    CHECK(cuMemFree_v2(pointer));
    CHECK(cuMemFree_v2(other));
}

static void pooled(void) {
    CUmemoryPool pool;
    CUdeviceptr pointer, other;
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}};
    CHECK(cuMemPoolCreate(&pool, &properties));
    CHECK(cuMemAllocFromPoolAsync(&pointer, MIB, pool, NULL));
    REFUSED(cuMemAllocFromPoolAsync(&other, OWN_LIMIT, pool, NULL));
    CHECK(cuMemAllocAsync(&other, MIB, NULL));
    CHECK(cuMemFreeAsync(pointer, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemPoolDestroy(pool));
    CHECK(cuMemFreeAsync(other, NULL));
    CHECK(cuStreamSynchronize(NULL));
}

static void by_handle(void) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}};
    CHECK(cuMemCreate(&handle, 4 * MIB, &properties, 0));
    CHECK(cuMemAddressReserve(&address, 4 * MIB, 0, 0, 0));
    CHECK(cuMemMap(address, 4 * MIB, 0, handle, 0));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemUnmap(address, 4 * MIB));
}

static void array(void) {
    CUarray made;
    const CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = 1024, .Height = 1024, .Format = 1, .NumChannels = 4};
    CHECK(cuArrayCreate_v2(&made, &descriptor));
    CHECK(cuArrayDestroy(made));
}

static void graph(void) {
    CUgraph made;
    CUgraphExec exec;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_DEVICE, 0}},
                                             .bytesize = 10 * MIB};
    CHECK(cuGraphCreate(&made, 0));
    CHECK(cuGraphAddMemAllocNode(&node, made, NULL, 0, &parameters));
    CHECK(cuGraphAddMemFreeNode(&node, made, NULL, 0, parameters.dptr));
    CHECK(cuGraphInstantiateWithFlags(&exec, made, 0));
    CHECK(cuGraphLaunch(exec, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuDeviceGraphMemTrim(0));
}

static void with_context(void) {
    CUcontext context;
    CUdeviceptr pointer;
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuMemAlloc_v2(&pointer, MIB));
    CHECK(cuCtxDestroy_v2(context));
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*take)(void);
    } ways[] = {{"plain", plain}, {"pooled", pooled}, {"by_handle", by_handle},
                {"array", array}, {"graph", graph},   {"with_context", with_context}};
    CUcontext context;
    char character;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    (void)!write(1, "ready\n", 6);
    (void)!read(0, &character, 1);
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (count > 1 && strcmp(ways[i].name, arguments[1]) == 0)
            ways[i].take();
    }
    _exit(0);
}
