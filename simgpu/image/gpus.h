/* The GPUs of this node that this process can see: the files in the simulation's directory, mapped.
 *
 * A container sees exactly the files that were mounted into it, as a real one sees exactly the device nodes it was
 * given, and both drivers number what is there from 0 in the order of the node.
 *
 * The descriptor of a GPU is never closed: closing any descriptor of a file drops all of the process's POSIX locks on
 * it, and the process's slot (slots.h) is such a lock, possibly taken by the other driver library in the process. */
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
    int slot;                            /* held by this library in this process, or -1 */
    uint64_t limit_bytes;                /* what this process may hold at most; 0: as much as there is */
    bool mps;                            /* this process is a client of MPS */
    unsigned percent;                    /* how much of the GPU it may have at once */
    uint32_t instance, compute_instance; /* which MIG device it is, by ids + 1; 0: the GPU itself */
    pthread_mutex_t mutex;
    pthread_mutex_t queues_mutex; /* taken after the other one, or alone */
    unsigned queues_lock;         /* which one is held with it: see slots.c */
} gpu_t;

typedef enum {
    GPUS_OK,
    GPUS_NONE,     /* no directory, or no GPU in it */
    GPUS_MISMATCH, /* made by another version of the simulation */
    GPUS_DENIED,   /* not readable, or not writable where that was asked for */
} gpus_result_t;

/* Opens the file that every process opens first, as /dev/nvidiactl of the real driver, where the directory has one: a
 * device `control`. False: the kernel does not let us. */
bool gpus_accessible(const char *directory);

typedef enum { GPUS_READ, GPUS_WRITE } gpus_access_t;

const char *gpus_directory(void);

/* Whether the MIG device that `gpu` stands for still exists; for a whole GPU, whether MIG mode is off. */
bool gpu_is_usable(const gpu_t *gpu);
uint64_t gpu_memory_bytes(const gpu_t *gpu);
image_schedule_t *gpu_schedule(const gpu_t *gpu);

/* Maps every GPU of `directory`; `gpus` has room for IMAGE_MAX_GPUS. */
gpus_result_t gpus_open(const char *directory, gpus_access_t access, gpu_t *gpus, unsigned *count_p);

#endif
