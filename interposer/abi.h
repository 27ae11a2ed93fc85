/* The CUDA and NVML types that the hooks touch: ABI facts that every client compiled in. No vendor header is needed. */
#ifndef GPUSHARE_ABI_H
#define GPUSHARE_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1; /* before CUDA 3.2 */
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

typedef struct {
    uint8_t bytes[16];
} CUuuid;

typedef struct {
    int type;
    int id;
} CUmemLocation;
#define CU_MEM_LOCATION_TYPE_DEVICE 1
#define CU_MEM_LOCATION_TYPE_HOST 2
#define CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT 4

/* The beginnings of the two structures: what follows is for the driver. */
typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
} CUmemAllocationProp;

typedef struct {
    int allocType, handleTypes;
    CUmemLocation location;
} CUmemPoolProps;
#define CU_MEMPOOL_ATTR_RELEASE_THRESHOLD 4

typedef struct {
    int type;
} CUgraphNodeParams;
#define CU_GRAPH_NODE_TYPE_MEM_ALLOC 10

#define CU_LIMIT_PRINTF_FIFO_SIZE 1
#define CU_LIMIT_MALLOC_HEAP_SIZE 2

#define CU_EVENT_BLOCKING_SYNC 1u
#define CU_EVENT_DISABLE_TIMING 2u
#define CU_STREAM_CAPTURE_MODE_RELAXED 2

#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_NOT_READY = 27,
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

#endif
