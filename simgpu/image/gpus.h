/* The GPUs that this process can see: the files in the simulation's directory, mapped.
 *
 * A container sees the files that are mounted into it, as a real container sees the device nodes that it was given.
 * Both drivers number these GPUs from 0 in the order of the node.
 *
 * The descriptor of a GPU is never closed. Closing any descriptor of a file drops all POSIX locks that the process
 * has on the file, and the process's slot (slots.h) is such a lock. The other driver library in the process may have
 * taken it. */
#ifndef SIMGPU_GPUS_H
#define SIMGPU_GPUS_H

#include <pthread.h>
#include <stdbool.h>

#include "image/image.h"

#define SIMGPU_DIRECTORY_VARIABLE "SIMGPU_DIR"
#define SIMGPU_DIRECTORY_DEFAULT "/dev/simgpu"

typedef struct {
    image_t *image;
    int descriptor;
    unsigned index;                      /* in this process's enumeration */
    int slot;                            /* taken by this library in this process; -1: none */
    uint64_t limit_bytes;                /* the most memory this process may have; 0: no limit */
    unsigned mps;                        /* as an MPS client: the entry of its server, from 1; 0: it is none */
    uint64_t server;                     /* the identifier of that server */
    unsigned partition;                  /* its static SM partition, from 1; 0: none */
    unsigned percent;                    /* the maximum of the GPU that its kernels use at once */
    uint32_t instance, compute_instance; /* the MIG device, as ids + 1; 0: the whole GPU */
    pthread_mutex_t mutex;
    pthread_mutex_t queues_mutex; /* taken after `mutex`, or alone */
    unsigned queues_lock;         /* the lock on the file that is held with it: see locks.c */
} gpu_t;

typedef enum {
    GPUS_OK,
    GPUS_NONE,     /* no directory, or no GPU in it */
    GPUS_MISMATCH, /* made by another version of the simulation */
    GPUS_DENIED,   /* not readable, or not writable although GPUS_WRITE was given */
} gpus_result_t;

/* Open the device file `control` if the directory has one. Every process does so first, as with /dev/nvidiactl of
 * the real driver. False: the kernel does not allow it. */
bool gpus_accessible(const char *directory);

typedef enum { GPUS_READ, GPUS_WRITE } gpus_access_t;

const char *gpus_directory(void);

/* Whether the MIG device that `gpu` stands for still exists; for a whole GPU, whether MIG mode is off. */
bool gpu_is_usable(const gpu_t *gpu);
uint64_t gpu_memory_bytes(const gpu_t *gpu);
image_schedule_t *gpu_schedule(const gpu_t *gpu);

/* Map every GPU in `directory`. `gpus` has room for IMAGE_MAX_GPUS. */
gpus_result_t gpus_open(const char *directory, gpus_access_t access, gpu_t *gpus, unsigned *count_p);

#endif
