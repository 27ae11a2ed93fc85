#ifndef SIMGPU_CUDA_MPS_H
#define SIMGPU_CUDA_MPS_H

#include "cuda/abi/abi.h"
#include "image/gpus.h"

/* Connect to the MPS control daemon that the environment names. Without one, the process is not a client, and that is
 * no error. Called once, by cuInit. */
CUresult mps_connect(void);
/* In the child of a client: it is not one. */
void mps_forget(void);
bool mps_is_client(void);
/* Return the UUIDs of the server's GPUs, in its order, with commas; NULL: the process is not a client. */
const char *mps_devices(void);

/* Whether this process may have a context on a GPU, by its compute mode and MPS. Before its first context there, that
 * fixes what it gets. `devices`: how many devices it sees. */
CUresult mps_admit(gpu_t *gpu, CUdevice device, int devices);
/* Return the maximum of contexts of all clients on a GPU. */
unsigned mps_max_contexts(const gpu_t *gpu);
/* Return the error with which a client has ended on this GPU. */
CUresult mps_ended(const gpu_t *gpu);
/* Return the size of the client's static SM partition of the GPU; 0: it has none. */
unsigned mps_partition_multiprocessors(const gpu_t *gpu);

#endif
