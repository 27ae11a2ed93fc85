#define _GNU_SOURCE
#include "session/mps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/contract.h"
#include "base/report.h"
#include "cuda/device.h"
#include "driver/driver.h"
#include "session/join.h"
#include "share/share.h"

#define PARTITION "CUDA_MPS_SM_PARTITION"
#define MPS_ENABLED 133 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, since CUDA 12 */

/* Variables with which a process could change what the share gives it.
 * https://docs.nvidia.com/deploy/mps/appendix-tools-and-interface-reference.html */
static const char *const removed[] = {
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", /* one that names an unknown GPU drops all limits */
    "CUDA_MPS_CLIENT_PRIORITY",
    PARTITION,
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
};

/* The agent keeps the partition's name in a file, because another daemon gives it another name. Without the file, the
 * GPU is not partitioned, or the daemon refuses the process. */
static bool set_partition(void) {
    char name[128];
    int file = open(CONTAINER_MPS_PARTITION "/" MPS_PARTITION_NAME, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return true;
    ssize_t length = read(file, name, sizeof name - 1);
    (void)close(file);
    name[length > 0 ? length : 0] = '\0';
    return setenv(PARTITION, name, 1) == 0;
}

bool mps_prepare(void) {
    const wire_isolation_t *isolation = share_isolation();
    char percent[16];
    if (isolation->isolation != ISOLATION_MPS)
        return true;
    (void)snprintf(percent, sizeof percent, "%u", isolation->percent > 0 ? isolation->percent : 1);
    for (unsigned i = 0; i < sizeof removed / sizeof *removed; i++)
        (void)unsetenv(removed[i]);
    if (setenv("CUDA_MPS_PIPE_DIRECTORY", isolation->pipe, 1) == 0 &&
        setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent, 1) == 0 && set_partition())
        return true;
    report("no memory for the variables of MPS: raise the container's memory limit");
    return false;
}

/* Without a daemon, the driver runs the process next to the clients, with the whole GPU. */
static bool is_client(CUdevice device) {
    int enabled = 0;
    return REAL(cuDeviceGetAttribute)(&enabled, MPS_ENABLED, device) == CUDA_SUCCESS && enabled != 0;
}

CUresult mps_check(void) {
    const wire_isolation_t *isolation = share_isolation();
    int count = 0;
    if (isolation->isolation != ISOLATION_MPS)
        return CUDA_SUCCESS;
    CUresult result = REAL(cuDeviceGetCount)(&count);
    for (CUdevice device = 0; result == CUDA_SUCCESS && device < count; device++) {
        uint32_t gpu;
        result = device_gpu(device, &gpu);
        if (result == CUDA_SUCCESS && gpu != SHARE_NO_GPU && !is_client(device))
            result = CUDA_ERROR_MPS_CONNECTION_FAILED;
    }
    if (result != CUDA_SUCCESS) {
        report("this process is refused (CUDA error %d): its share's isolation is mps, and it is no client of the MPS "
               "daemon at %s; run it again once the node's agent has started the daemon",
               result, isolation->pipe);
        session_refuse();
    }
    return result;
}
