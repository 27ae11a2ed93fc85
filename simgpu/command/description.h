/* A node's GPUs as a person writes them down: an INI file, read once by `simgpu create`.
 *
 *     [node]
 *     name = node-a                  ; UUIDs that are not given are derived from it
 *     driver-version = 550.54.15
 *     cuda-version = 12.4
 *
 *     [gpu 0]                        ; GPU 0, or the first of `count`
 *     count = 4
 *     model = NVIDIA A100-SXM4-80GB
 *     memory = 80GiB
 *     compute-capability = 8.0
 *
 * The keys are the tables in description.c. */
#ifndef SIMGPU_DESCRIPTION_H
#define SIMGPU_DESCRIPTION_H

#include <stdbool.h>
#include <stdint.h>

#include "image/image.h"

typedef struct {
    unsigned index; /* of the first GPU of the section */
    unsigned count;
    unsigned line;
    char model[96];
    uint64_t memory_bytes;
    uint64_t context_bytes;
    char uuid[48]; /* empty: derived */
    unsigned compute_capability_major;
    unsigned compute_capability_minor;
    unsigned pci_domain;
    unsigned pci_bus; /* of the first; the next ones follow */
    int numa_node;
    unsigned pci_switch;
    uint64_t nvlink_peers;
    bool mig_capable;
    unsigned multiprocessors;
    uint64_t context_switch_ns;
    char fabric_uuid[48]; /* empty: in none */
    unsigned fabric_clique;
    uint64_t block_bytes; /* 0: to the byte */
    uint64_t kernel_ns;   /* how long a kernel runs whose name does not tell; 0: there is none */
} description_gpu_t;

typedef struct {
    char name[64];
    char driver_version[32];
    unsigned cuda_version; /* as the driver gives it: 12040 is 12.4 */
    unsigned gpu_count;    /* sections, not GPUs */
    description_gpu_t gpus[IMAGE_MAX_GPUS];
} description_t;

/* False: `error` has a sentence with file, line, key, value and remedy. */
bool description_read(const char *path, description_t *description, char *error, unsigned error_size);

#endif
