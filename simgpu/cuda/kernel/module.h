/* What modules and kernels are made of. A library is a module without a context; its kernels run in any context. */
#ifndef SIMGPU_CUDA_MODULE_H
#define SIMGPU_CUDA_MODULE_H

#include "cuda/device/handle.h"
#include "image/gpus.h"

/* cuda_kernel.c. What a kernel's name says of it. */
typedef struct {
    uint64_t duration_ns;
    unsigned percent;    /* of the GPU */
    unsigned group_size; /* how many of its kind must have begun before it goes on; 0 or 1: it waits for nobody */
    uint64_t key;        /* which kind; 0: that of its process */
} kernel_t;

#define FIRST_DYNAMIC_BYTES 49152

struct CUfunc_st {
    handle_head_t head;
    CUfunction next;
    CUmodule module;
    char *name;
    kernel_t kernel;
    bool fails;
    int dynamic_bytes; /* the most shared memory that it may be given at a launch */
    int carveout;
};

struct CUmod_st {
    handle_head_t head;
    CUcontext context; /* NULL: it is a library */
    uint64_t context_id;
    CUfunction functions;
    unsigned count;
};

CUmodule module_make(CUcontext context);
void module_end(CUmodule module);

/* The one of that name, on such a GPU. */
CUresult module_function(CUfunction *function, CUmodule module, const char *name, const gpu_t *gpu);

/* False: it is for the parameters to say, and they do not. */
bool kernel_duration(CUfunction function, const gpu_t *gpu, void **parameters, uint64_t *duration_ns_p);

#endif
