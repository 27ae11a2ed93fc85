/* The part of the CUDA driver's ABI that is simulated: types and numbers that every client has compiled in.
 *
 * The names are CUDA's. The tables entries.def, per_thread.def and unsimulated.def list the exported functions, and
 * each of them is declared here. */
#ifndef SIMGPU_CUDA_ABI_H
#define SIMGPU_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_API __attribute__((visibility("default")))

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
    CUDA_ERROR_MPS_RPC_FAILURE = 806,
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
    CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 915,
    CUDA_ERROR_UNKNOWN = 999,
} CUresult;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1; /* before CUDA 3.2 */
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUlinkState_st *CUlinkState;
typedef void (*CUhostFn)(void *data);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUarray_st *CUarray;
typedef struct CUarray_st *CUmipmappedArray; /* the same kind of object in the simulation */

typedef struct {
    uint8_t bytes[16];
} CUuuid;

typedef struct {
    int type; /* 1: a device, with its number in `id` */
    int id;
} CUmemLocation;

typedef struct {
    int type; /* 1: pinned */
    int requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    uint8_t allocFlags[8];
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    int flags; /* 0: none, 1: read, 3: read and write */
} CUmemAccessDesc;

typedef struct {
    int allocType, handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    uint8_t reserved[56];
} CUmemPoolProps;

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

typedef struct {
    unsigned Width, Height;
    int Format;
    unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct {
    int resourceType;
    CUarray array;
    int subresourceType;
    uint64_t subresource[4];
    int memOperationType; /* 1: map, 2: unmap */
    int memHandleType;
    CUmemGenericAllocationHandle memHandle;
    uint64_t offset;
    unsigned deviceBitMask, flags, reserved[2];
} CUarrayMapInfo;

typedef struct {
    uint8_t reserved[64];
} CUmemPoolPtrExportData;

typedef struct {
    char reserved[64];
} CUipcMemHandle;

typedef struct {
    char reserved[64];
} CUipcEventHandle;

typedef struct {
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int sharedMemPerBlock, totalConstantMemory, SIMDWidth, memPitch, regsPerBlock, clockRate, textureAlign;
} CUdevprop;

/* Memory types: 1 host, 2 device, 3 array, 4 unified (the address decides). */
typedef struct {
    size_t srcXInBytes, srcY;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct {
    int srcAccessOrder; /* 1: in stream order, 2: before the call returns, 3: any */
    CUmemLocation srcLocHint, dstLocHint;
    unsigned flags;
} CUmemcpyAttributes;

typedef struct {
    int type; /* 1: a pointer, 2: an array */
    union {
        struct {
            CUdeviceptr ptr;
            size_t rowLength, layerHeight; /* 0: the copy's own */
            CUmemLocation locHint;
        } ptr;
        struct {
            CUarray array;
            size_t x, y, z;
        } array;
    } op;
} CUmemcpy3DOperand;

typedef struct {
    CUmemcpy3DOperand src, dst;
    struct {
        size_t width, height, depth;
    } extent;
    int srcAccessOrder;
    unsigned flags;
} CUDA_MEMCPY3D_BATCH_OP;

typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct {
    CUhostFn function;
    void *data;
} CUDA_HOST_NODE_PARAMS;

typedef union {
    int operation;
    struct {
        int operation;
        CUdeviceptr address;
        uint64_t value;
        unsigned flags;
        CUdeviceptr alias;
    } word;
    uint64_t pad[6];
} CUstreamBatchMemOpParams;

typedef struct {
    CUmemPoolProps poolProps;
    const CUmemAccessDesc *accessDescs;
    size_t accessDescCount;
    size_t bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    CUdeviceptr dptr;
} CUDA_MEM_FREE_NODE_PARAMS;

typedef struct {
    int type;
    int reserved0[3];
    union {
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUDA_MEM_FREE_NODE_PARAMS free;
        long long reserved1[29];
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct {
    uint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

typedef struct {
    int result;
    CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;

typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    CUfunction func;
    unsigned gridDimX, gridDimY, gridDimZ;
    unsigned blockDimX, blockDimY, blockDimZ;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
    void *kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

#define CU_MEM_LOCATION_DEVICE 1
#define CU_MEM_LOCATION_HOST_NUMA 3
#define CU_MEM_ALLOCATION_PINNED 1
#define CU_MEM_ALLOCATION_MANAGED 2
#define CU_MEM_HANDLE_FILE_DESCRIPTOR 1
#define EVENT_DISABLE_TIMING 2u
#define EVENT_INTERPROCESS 4u

/* CUDA's constants, with shorter names */
#define POOL_REUSE_FIRST 1
#define POOL_REUSE_LAST 3
#define POOL_RELEASE_THRESHOLD 4
#define POOL_RESERVED 5
#define POOL_RESERVED_HIGH 6
#define POOL_USED 7
#define POOL_USED_HIGH 8
#define GRAPH_USED 0
#define GRAPH_USED_HIGH 1
#define GRAPH_RESERVED 2
#define GRAPH_RESERVED_HIGH 3
#define GRAPH_KERNEL 0
#define GRAPH_COPY 1
#define GRAPH_FILL 2
#define GRAPH_HOST 3
#define GRAPH_CHILD 4
#define GRAPH_EMPTY 5
#define GRAPH_MEM_ALLOC 10
#define GRAPH_MEM_FREE 11
#define GRAPH_UPLOAD 2u
#define GRAPH_UPDATE_TOPOLOGY_CHANGED 2
#define GRAPH_UPDATE_NOT_SUPPORTED 6
#define ARRAY_LAYERED 0x01u
#define ARRAY_CUBEMAP 0x04u
#define ARRAY_SPARSE 0x40u
#define ARRAY_DEFERRED_MAPPING 0x80u
#define CU_GET_PROC_ADDRESS_PER_THREAD 2u
#define CU_GET_PROC_ADDRESS_FOUND 0
#define CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND 1
#define CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT 2

#define ENTRY(symbol, name, version, per_thread, parameters) CUDA_API CUresult symbol parameters;
#include "cuda/abi/entries.def"
#include "cuda/abi/per_thread.def"
#undef ENTRY

#define UNSIMULATED(symbol, name, version, per_thread) CUDA_API CUresult symbol(void);
#include "cuda/abi/unsimulated.def"
#undef UNSIMULATED

#endif
