/* The CUDA and NVML types that the hooks use, as every client was compiled with them. No vendor header is needed. */
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
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
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
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

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
#define CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN 6
#define CU_MEM_ALLOCATION_TYPE_PINNED 1
#define CU_MEM_ALLOCATION_TYPE_MANAGED 2

/* Only the beginning of the structure. The driver reads the rest. */
typedef struct {
    int type, requestedHandleTypes;
    CUmemLocation location;
} CUmemAllocationProp;

typedef struct {
    int allocType, handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    uint8_t reserved[56];
} CUmemPoolProps;
#define CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT 5

typedef struct {
    CUmemPoolProps poolProps;
    const void *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

/* Only the beginning of both structures. */
typedef struct {
    int type;
    int reserved0[3];
    union { /* selected by `type` */
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUgraph graph;
    };
} CUgraphNodeParams;
typedef struct {
    uint64_t flags;
    CUstream hUploadStream;
} CUDA_GRAPH_INSTANTIATE_PARAMS;
#define CU_GRAPH_NODE_TYPE_GRAPH 4
#define CU_GRAPH_NODE_TYPE_MEM_ALLOC 10
#define CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT 2
#define CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD 2u

typedef struct {
    size_t Width, Height; /* Height 0: one-dimensional */
    int Format;
    unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
    size_t Width, Height, Depth;
    int Format;
    unsigned NumChannels;
    unsigned Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

/* Before CUDA 3.2. */
typedef struct {
    unsigned Width, Height;
    int Format;
    unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
    unsigned Width, Height, Depth;
    int Format;
    unsigned NumChannels;
    unsigned Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;
#define CUDA_ARRAY3D_LAYERED 0x01u
#define CUDA_ARRAY3D_CUBEMAP 0x04u
#define CUDA_ARRAY3D_SPARSE 0x40u
#define CUDA_ARRAY3D_DEFERRED_MAPPING 0x80u

/* One mapping of memory into a sparse array. */
typedef struct {
    int resourceType;
    uint64_t resource;
    int subresourceType;
    uint64_t subresource[4];
    int memOperationType;
    int memHandleType;
    CUmemGenericAllocationHandle memHandle;
    uint64_t offset;
    unsigned deviceBitMask, flags, reserved[2];
} CUarrayMapInfo;
#define CU_MEM_OPERATION_TYPE_MAP 1

#define CU_LIMIT_PRINTF_FIFO_SIZE 1
#define CU_LIMIT_MALLOC_HEAP_SIZE 2

#define CU_EVENT_BLOCKING_SYNC 1u
#define CU_EVENT_DISABLE_TIMING 2u
#define CU_STREAM_CAPTURE_MODE_RELAXED 2

#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

/* A symbol status that cuGetProcAddress returns. */
#define CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND 1

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_NOT_READY = 27,
    NVML_ERROR_UNKNOWN = 999,
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
