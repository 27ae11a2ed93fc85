/* The description of a node's GPUs: an INI file that `simgpu create` reads.
 *
 *     [node]
 *     name = node-a                  ; missing UUIDs are derived from it
 *     driver-version = 550.54.15
 *     cuda-version = 12.4
 *
 *     [gpu 0]                        ; GPU 0, or the first of `count`
 *     count = 4
 *     model = NVIDIA A100-SXM4-80GB
 *     memory = 80GiB
 *     compute-capability = 8.0
 *
 * The tables in description.c list all keys. */
#ifndef SIMGPU_DESCRIPTION_H
#define SIMGPU_DESCRIPTION_H

#include <stdbool.h>
#include <stdint.h>

#include "image/image.h"

typedef struct {
    unsigned index; /* of the section's first GPU */
    unsigned count;
    unsigned line;
    char model[96];
    uint64_t memory_bytes;
    uint64_t context_bytes;
    char uuid[48]; /* empty: derived */
    unsigned compute_capability_major;
    unsigned compute_capability_minor;
    unsigned pci_domain;
    unsigned pci_bus; /* of the first GPU; the others follow */
    int numa_node;
    unsigned pci_switch;
    uint64_t nvlink_peers;
    bool mig_capable;
    unsigned multiprocessors;
    uint64_t context_switch_ns;
    char fabric_uuid[48]; /* empty: none */
    unsigned fabric_clique;
    uint64_t block_bytes; /* allocation granularity; 0: one byte */
    uint64_t kernel_ns;   /* run time of kernels whose names contain none; 0: such kernels do not exist */
} description_gpu_t;

typedef struct {
    char name[64];
    char driver_version[32];
    unsigned cuda_version; /* as the driver reports it: 12040 is 12.4 */
    unsigned gpu_count;    /* sections, not GPUs */
    description_gpu_t gpus[IMAGE_MAX_GPUS];
} description_t;

/* Read and check a description. False: `error` contains file, line, key and value, and what to write. */
bool description_read(const char *path, description_t *description, char *error, unsigned error_size);

#endif
