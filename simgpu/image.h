/* The layout of one simulated GPU: a file that every process of the node maps and shares.
 *
 * The file stands for the silicon: what is in it is true for every container on the node at once, whatever its mount,
 * pid or user namespace. It is written by the drivers of the processes that use the GPU and by the `simgpu` command;
 * each field says who. Numbers that several processes write are atomic, and there is no lock word in it that a killed
 * process could keep (see slots.h). */
#ifndef SIMGPU_IMAGE_H
#define SIMGPU_IMAGE_H

#include <stdint.h>

#define IMAGE_MAGIC "simgpu\n"
#define IMAGE_VERSION 2u
#define IMAGE_MAX_GPUS 64u
#define IMAGE_SLOTS 512u
#define IMAGE_EVENTS 64u
#define IMAGE_BUCKETS 64u
#define IMAGE_INSTANCES 8u /* GPU instances, and compute instances in each */
#define IMAGE_NO_SWITCH UINT32_MAX

/* One process with a context on this GPU. Its memory counts only while that process holds the slot's lock. */
typedef struct {
    uint64_t pid;         /* as the process itself sees it: tells its own slot from others, never shown to anyone */
    uint64_t start_ticks; /* when that process started, so that a reused pid is not taken for it */
    _Atomic uint64_t memory_bytes;
    uint64_t instance; /* the GPU instance that it is in, by id + 1; 0: it has the whole GPU */
    uint64_t part;     /* the same for the compute instance */
    uint64_t reserved[3];
} image_slot_t;

/* A compute instance: a MIG device, as programs see it. */
typedef struct {
    uint32_t present;
    uint32_t id;
    uint32_t slices;
    uint32_t start; /* in its GPU instance */
    uint8_t uuid_bytes[16];
    char uuid[48];
} image_part_t;

/* A GPU instance. Entries are free or present; `present` is set last and cleared first, so that a reader sees it whole
 * or not at all. */
typedef struct {
    _Atomic uint32_t present;
    uint32_t id;
    uint32_t profile; /* its number in NVML's header */
    uint32_t start;
    uint64_t memory_bytes;
    _Atomic uint64_t busy_until_ns; /* a timeline of its own: instances do not wait for each other */
    image_part_t parts[IMAGE_INSTANCES];
} image_instance_t;

typedef struct {
    uint64_t type; /* an nvmlEventType bit */
    uint64_t data; /* the XID, for XID events */
} image_event_t;

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t size_bytes;

    /* What the GPU is: written by `simgpu create`, never changed. */
    uint32_t node_index; /* position in the node, also its minor number; enumeration may renumber */
    uint32_t cuda_version;
    char driver_version[32];
    char model[96];
    char uuid[48];
    uint8_t uuid_bytes[16];
    char pci_bus_id[32];
    uint64_t memory_bytes;
    uint32_t compute_capability_major;
    uint32_t compute_capability_minor;
    int32_t numa_node;
    uint32_t pci_switch;   /* GPUs under the same switch are one hop apart; IMAGE_NO_SWITCH: under none */
    uint64_t nvlink_peers; /* bit i: linked to the GPU with node_index i */
    uint32_t mig_slices;   /* places for GPU instances: 8, 4, or 0 on a model that cannot be cut */
    uint32_t multiprocessors;

    /* What has gone wrong: written by `simgpu fail` and `simgpu heal`. */
    _Atomic uint32_t lost;
    _Atomic uint32_t mute; /* tells no events */
    _Atomic uint32_t ecc_failed;
    _Atomic uint64_t ecc_uncorrected;
    _Atomic uint64_t event_count; /* events ever; the last IMAGE_EVENTS are kept */
    image_event_t events[IMAGE_EVENTS];

    /* How it is set up: written by NVML's calls that change it, one process at a time (slots_change_begin). It stays as
     * it is when that process dies, half-way or not. */
    _Atomic uint32_t mig_mode;
    _Atomic uint32_t mig_pending; /* what the mode will be after a reset */
    _Atomic uint32_t compute_mode;
    image_instance_t instances[IMAGE_INSTANCES];

    /* The timeline of kernels: written by every launch, without a lock. CLOCK_MONOTONIC. */
    _Atomic uint64_t busy_until_ns;
    _Atomic uint64_t busy_buckets[IMAGE_BUCKETS]; /* see timeline.h */

    /* Who is using it: written by libcuda of each process. */
    _Atomic uint32_t slots_high; /* slots ever used: how far a walk must look */
    _Atomic uint32_t changes;    /* odd while the slots are being changed: see slots.c */
    image_slot_t slots[IMAGE_SLOTS];
} image_t;

#endif
