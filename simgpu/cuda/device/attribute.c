/* Device attributes, by CUDA's numbers. Attributes that CUDA knows and that are not simulated are 0: the device
 * lacks the feature. A number that CUDA does not know is an error. */
#include <stdio.h>
#include <string.h>

#include "cuda/device/device.h"
#include "cuda/device/mps.h"
#include "cuda/device/visible.h"
#include "image/mig_layout.h"

#define LAST_ATTRIBUTE 147 /* of CUDA 13.0 */
#define LAST_ATOMIC_OPERATION 12
#define KIB 1024

/* Figures by compute capability: those of the data-center model of that generation. */
typedef struct {
    unsigned major, minor;
    int multiprocessor_threads, multiprocessor_blocks, multiprocessor_shared_bytes;
    int clock_khz, memory_clock_khz, bus_bits, l2_bytes;
} generation_t;

static const generation_t generations[] = {
    {7, 0, 2048, 32, 96 * KIB, 1530000, 877000, 4096, 6144 * KIB},
    {7, 5, 1024, 16, 64 * KIB, 1590000, 5001000, 256, 4096 * KIB},
    {8, 0, 2048, 32, 164 * KIB, 1410000, 1215000, 5120, 40960 * KIB},
    {8, 6, 1536, 16, 100 * KIB, 1695000, 6251000, 384, 6144 * KIB},
    {8, 9, 1536, 24, 100 * KIB, 2040000, 6251000, 192, 49152 * KIB},
    {9, 0, 2048, 32, 228 * KIB, 1980000, 2619000, 5120, 51200 * KIB},
    {10, 0, 2048, 32, 228 * KIB, 1965000, 3996000, 8192, 129024 * KIB},
    {12, 0, 1536, 24, 100 * KIB, 2617000, 14001000, 512, 98304 * KIB},
};

/* Return the newest generation that is not newer than the device. */
static const generation_t *generation_of(const image_t *image) {
    const generation_t *found = &generations[0];
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++) {
        const generation_t *one = &generations[i];
        if (one->major < image->compute_capability_major ||
            (one->major == image->compute_capability_major && one->minor <= image->compute_capability_minor))
            found = one;
    }
    return found;
}

static int multiprocessors(const gpu_t *gpu) {
    return (int)(gpu->instance == 0 ? gpu->image->multiprocessors
                                    : visible_compute_instance(gpu)->slices * mig_slice_multiprocessors(gpu->image));
}

/* The shared memory that a block can request: a multiprocessor's, minus the system's part from Ampere on. */
static int max_shared_bytes(const generation_t *generation) {
    return generation->multiprocessor_shared_bytes - (generation->major >= 8 ? KIB : 0);
}

static int value_of(const gpu_t *gpu, int attribute) {
    const image_t *image = gpu->image;
    const generation_t *is = generation_of(image);
    unsigned domain = 0, bus = 0;
    (void)sscanf(image->pci_bus_id, "%x:%x", &domain, &bus);
    const struct {
        int attribute, value;
    } table[] = {
        {1, 1024}, /* threads per block */
        {2, 1024}, /* block: x, y, z */
        {3, 1024},
        {4, 64},
        {5, 2147483647}, /* grid: x, y, z */
        {6, 65535},
        {7, 65535},
        {8, 48 * KIB},    /* shared memory per block, by default */
        {9, 64 * KIB},    /* constant memory */
        {10, 32},         /* warp size */
        {11, 2147483647}, /* pitch */
        {12, 65536},      /* registers per block */
        {13, is->clock_khz},
        {14, 512}, /* texture alignment */
        {15, 1},   /* copies and kernels overlap */
        {16, multiprocessors(gpu)},
        {19, 1}, /* can map host memory */
        {20, (int)image->compute_mode},
        {21, 131072}, /* textures: 1D, 2D, 3D */
        {22, 131072},
        {23, 65536},
        {24, 16384},
        {25, 16384},
        {26, 16384},
        {27, 32768}, /* layered */
        {28, 32768},
        {29, 2048},
        {30, 512}, /* surface alignment */
        {31, 1},   /* concurrent kernels */
        {32, 1},   /* ECC */
        {33, (int)bus},
        {34, 0}, /* PCI device */
        {36, is->memory_clock_khz},
        {37, is->bus_bits},
        {38, is->l2_bytes},
        {39, is->multiprocessor_threads},
        {40, 3}, /* copy engines */
        {41, 1}, /* unified address space */
        {42, 32768},
        {43, 2048},
        {50, (int)domain},
        {51, 32},        /* texture pitch alignment */
        {69, 268435456}, /* linear textures */
        {70, 131072},
        {71, 65000},
        {72, 2097120},
        {75, (int)image->compute_capability_major},
        {76, (int)image->compute_capability_minor},
        {78, 1}, /* stream priorities */
        {79, 1}, /* level 1 caches */
        {80, 1},
        {81, is->multiprocessor_shared_bytes},
        {82, 65536}, /* registers per multiprocessor */
        {83, 1},     /* managed memory */
        {85, 0},     /* on a multi-GPU board */
        {87, 2},     /* performance ratio of single to double precision */
        {89, 1},     /* concurrent access to managed memory */
        {90, 1},     /* preemption of kernels */
        {91, 1},     /* registered host memory keeps its address */
        {92, 1},     /* stream memory operations, first form */
        {93, 1},
        {94, 1},
        {95, 1}, /* cooperative kernels */
        {96, 1},
        {97, max_shared_bytes(is)},
        {99, 1},  /* host memory can be registered */
        {102, 1}, /* virtual memory management */
        {103, 1}, /* with file descriptors */
        {106, is->multiprocessor_blocks},
        {111, KIB * (is->major >= 8)}, /* shared memory per block reserved by the system */
        {112, 1},                      /* sparse arrays */
        {113, 1},                      /* read-only host registration */
        {115, 1},                      /* memory pools */
        {119, 1},                      /* with file descriptors */
        {121, 1},                      /* arrays with deferred mapping */
        {122, 1},                      /* stream memory operations: 64 bits, and NOR */
        {123, 1},
        {125, 1}, /* interprocess events */
        {126, 1}, /* memory synchronization domains */
        {133, mps_is_client()},
        {134, image->numa_node},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].attribute == attribute)
            return table[i].value;
    }
    return 0;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || attribute < 1 || attribute > LAST_ATTRIBUTE)
        return CUDA_ERROR_INVALID_VALUE;
    *value = value_of(gpu, attribute);
    return CUDA_SUCCESS;
}

/* The older form, without attribute numbers. */
CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS || properties == NULL)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    const int numbers[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    int *fields = (int *)properties;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        fields[i] = value_of(gpu, numbers[i]);
    return CUDA_SUCCESS;
}
_Static_assert(sizeof(CUdevprop) == 14 * sizeof(int), "its fields are the first attributes in order");

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *elements, int format, unsigned channels, CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    if (result != CUDA_SUCCESS || elements == NULL || channels == 0)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    (void)format;
    *elements = (size_t)value_of(gpu, 69);
    return CUDA_SUCCESS;
}

/* All memory is host memory here, so GPUs can access each other's. */
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    gpu_t *gpu, *other;
    CUresult result = driver_gpu(device, &gpu);
    if (result == CUDA_SUCCESS)
        result = driver_gpu(peer, &other);
    if (result == CUDA_SUCCESS && can == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *can = device != peer;
    return result;
}

/* 1: performance rank (0 is best), 2: access, 3: atomics, 4: arrays. */
CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer) {
    int can;
    CUresult result = cuDeviceCanAccessPeer(&can, device, peer);
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL || attribute < 1 || attribute > 5)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == 2 || attribute == 4;
    return CUDA_SUCCESS;
}

/* The links support no native atomics, consistent with attributes 86 and 3. */
static CUresult no_atomics(unsigned *capabilities, const int *operations, unsigned count) {
    bool fine = capabilities != NULL && operations != NULL && count > 0;
    for (unsigned i = 0; fine && i < count; i++)
        fine = operations[i] >= 0 && operations[i] <= LAST_ATOMIC_OPERATION;
    if (fine)
        memset(capabilities, 0, count * sizeof *capabilities);
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetHostAtomicCapabilities(unsigned *capabilities, const int *operations, unsigned count,
                                           CUdevice device) {
    gpu_t *gpu;
    CUresult result = driver_gpu(device, &gpu);
    return result == CUDA_SUCCESS ? no_atomics(capabilities, operations, count) : result;
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned *capabilities, const int *operations, unsigned count,
                                          CUdevice device, CUdevice peer) {
    int can;
    CUresult result = cuDeviceCanAccessPeer(&can, device, peer);
    if (result == CUDA_SUCCESS && !can)
        result = CUDA_ERROR_INVALID_DEVICE;
    return result == CUDA_SUCCESS ? no_atomics(capabilities, operations, count) : result;
}
