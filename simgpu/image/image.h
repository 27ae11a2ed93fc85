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
#define IMAGE_VERSION 10u
#define IMAGE_MAX_GPUS 64u
#define IMAGE_SLOTS 512u
#define IMAGE_EVENTS 64u
#define IMAGE_BUCKETS 64u
#define IMAGE_INSTANCES 8u /* GPU instances, and compute instances in each */
#define IMAGE_LIMITS 64u
#define IMAGE_CGROUPS 8u     /* that a process is in, one in another */
#define IMAGE_CHANNELS 32u   /* as CUDA_DEVICE_MAX_CONNECTIONS at most */
#define IMAGE_LAUNCHES 1024u /* that wait or run */
#define IMAGE_ENDS 4096u
#define IMAGE_ORPHANS 1024u
#define IMAGE_NO_SWITCH UINT32_MAX

/* One process with a context on this GPU. Its memory counts only while that process holds the slot's lock. */
typedef struct {
    uint64_t pid;         /* as the process itself sees it: tells its own slot from others, never shown to anyone */
    uint64_t start_ticks; /* when that process started, so that a reused pid is not taken for it */
    _Atomic uint64_t memory_bytes;
    uint64_t instance;               /* the GPU instance that it is in, by id + 1; 0: it has the whole GPU */
    uint64_t compute_instance;       /* the same for the compute instance */
    uint64_t mps;                    /* it is a client of MPS */
    uint64_t cgroups[IMAGE_CGROUPS]; /* from its own upwards; 0 behind the last */
} image_slot_t;

/* Memory that its maker has let go while others may have it, or a descriptor of it: see shared.h. */
typedef struct {
    uint64_t memory; /* its inode; 0: none */
    uint64_t bytes;
    uint64_t instance;
} image_orphan_t;

/* What the processes of a control group may have: see limits.h. */
typedef struct {
    uint64_t cgroup;
    uint64_t soft_bytes, hard_bytes;
} image_limit_t;

/* What a process has given to the GPU to do: a kernel, or, with a percent of 0, a place in a stream where something
 * else is done. In use until its channel has passed its position. */
typedef struct {
    uint64_t number; /* in the order of the process's launches, from 1; 0: never used */
    uint64_t position;
    uint64_t remaining_ns; /* how long it takes yet, with the whole of its part */
    uint64_t ready_ns;     /* when everything had come that it waits for; 0: not yet */
    uint64_t after;        /* a mark that has to come first; 0: none */
    uint8_t channel, context, order, percent;
    _Atomic uint8_t held;  /* its process has yet to say that it may go on */
    _Atomic uint8_t begun; /* it is at work, or waits to go on */
} image_launch_t;

/* What is done one after another: the work of a stream, for as long as there is any. */
typedef struct {
    _Atomic uint64_t queued, done; /* launches ever, and how many of them have ended */
    uint8_t context, order;
    uint16_t launches[IMAGE_LAUNCHES]; /* which ones, by their position */
} image_channel_t;

/* The work of one process, in the same place as its slot: written under the lock of the queues. Whose pid and start are
 * not the slot's any more, is nobody's. */
typedef struct {
    uint64_t pid;
    uint64_t start_ticks;
    uint64_t instance;
    uint32_t mps;           /* it shares its turns with all other clients of MPS */
    uint32_t percent;       /* how much of the GPU it may have at once */
    uint64_t number;        /* of the last launch */
    uint32_t channels_high; /* channels ever used */
    uint32_t next;          /* where to look for a free launch */
    image_channel_t channels[IMAGE_CHANNELS];
    image_launch_t launches[IMAGE_LAUNCHES];
    uint64_t ended_ns[IMAGE_ENDS]; /* when the last ones ended, by their number */
    _Atomic uint64_t busy_buckets[IMAGE_BUCKETS];
} image_queue_t;

/* Whose turn it is. Times are CLOCK_MONOTONIC. */
typedef struct {
    _Atomic uint64_t at_ns; /* up to when everything has been worked out */
    uint64_t slice_end_ns;
    uint64_t checked_ns; /* whether those that have work are alive */
    uint32_t current;    /* its queue's place */
    uint32_t running;
} image_schedule_t;

/* A compute instance: a MIG device, as programs see it. */
typedef struct {
    uint32_t present;
    uint32_t id;
    uint32_t slices;
    uint32_t start; /* in its GPU instance */
    uint8_t uuid_bytes[16];
    char uuid[48];
} image_compute_instance_t;

/* A GPU instance. Entries are free or present; `present` is set last and cleared first, so that a reader sees it whole
 * or not at all. */
typedef struct {
    _Atomic uint32_t present;
    uint32_t id;
    uint32_t profile; /* its number in NVML's header */
    uint32_t start;
    uint64_t memory_bytes;
    image_schedule_t schedule; /* of its own: instances do not wait for each other */
    image_compute_instance_t compute_instances[IMAGE_INSTANCES];
} image_instance_t;

typedef struct {
    uint64_t type; /* an nvmlEventType bit */
    uint64_t data; /* the XID, for XID events */
} image_event_t;

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t size_bytes; /* of the file, at most */

    /* What the GPU is: written by `simgpu create`, never changed. */
    uint32_t node_index; /* position in the node, also its minor number; enumeration may renumber */
    uint32_t cuda_version;
    char driver_version[32];
    char model[96];
    char uuid[48];
    uint8_t uuid_bytes[16];
    char pci_bus_id[32];
    uint64_t memory_bytes;
    uint64_t context_bytes; /* what a context takes of it */
    uint32_t compute_capability_major;
    uint32_t compute_capability_minor;
    int32_t numa_node;
    uint32_t pci_switch;   /* GPUs under the same switch are one hop apart; IMAGE_NO_SWITCH: under none */
    uint64_t nvlink_peers; /* bit i: linked to the GPU with node_index i */
    uint32_t mig_slices;   /* places for GPU instances: 8, 4, or 0 on a model that cannot be cut */
    uint32_t multiprocessors;
    uint64_t context_switch_ns;
    uint8_t fabric_uuid_bytes[16]; /* the cluster that NVLink joins it with; zeros: none */
    uint32_t fabric_clique;
    uint64_t block_bytes; /* in which memory is given out; 0: to the byte */
    uint64_t kernel_ns;   /* how long a kernel runs whose name does not tell; 0: there is no such kernel */

    /* What has gone wrong: written by `simgpu fail` and `simgpu heal`. */
    _Atomic uint32_t lost;
    _Atomic uint32_t mute;   /* tells no events */
    _Atomic uint32_t silent; /* while one GPU is, NVML answers for none of the node */
    _Atomic uint32_t hung;   /* NVML's calls about it do not return */
    _Atomic uint32_t ecc_failed;
    _Atomic uint64_t ecc_uncorrected;
    _Atomic uint64_t event_count; /* events ever; the last IMAGE_EVENTS are kept */
    image_event_t events[IMAGE_EVENTS];

    /* How it is set up: written by NVML's calls that change it, one process at a time (gpu_lock_changes). It stays as
     * it is when that process dies, half-way or not. */
    _Atomic uint32_t mig_mode;
    _Atomic uint32_t mig_pending; /* what the mode will be after a reset */
    _Atomic uint32_t compute_mode;
    image_instance_t instances[IMAGE_INSTANCES];
    _Atomic uint32_t limits_high; /* limits ever used */
    image_limit_t limits[IMAGE_LIMITS];

    /* The timeline of kernels: see timeline.h, and usage.h. */
    image_schedule_t schedule;
    _Atomic uint64_t busy_buckets[IMAGE_BUCKETS];

    /* Who is using it: written by libcuda of each process. */
    _Atomic uint32_t slots_high; /* slots ever used: how far a walk must look */
    _Atomic uint32_t changes;    /* odd while the slots are being changed: see slots.c */
    image_slot_t slots[IMAGE_SLOTS];
    _Atomic uint32_t orphans_high;
    image_orphan_t orphans[IMAGE_ORPHANS];
} image_t;

/* A GPU's file: it ends with the queue of the last slot that was ever used. */
typedef struct {
    image_t image;
    image_queue_t queues[IMAGE_SLOTS];
} image_file_t;

static inline image_queue_t *image_queue(const image_t *image, unsigned index) {
    return &((image_file_t *)(uintptr_t)image)->queues[index];
}

#endif
