/* The layout of a simulated GPU: a file that all processes of the node map and share.
 *
 * The file stands for the hardware: its content is the same for all containers on the node, whatever their mount,
 * pid or user namespaces. The drivers of the processes that use the GPU write to it, and so does the `simgpu`
 * command; comments below say which one writes what. Numbers that several processes write are atomic. The file
 * contains no lock word that a killed process could leave locked (see locks.h). */
#ifndef SIMGPU_IMAGE_H
#define SIMGPU_IMAGE_H

#include <stdint.h>

#define IMAGE_MAGIC "simgpu\n"
#define IMAGE_VERSION 12u
#define IMAGE_MAX_GPUS 64u
#define IMAGE_SLOTS 512u
#define IMAGE_EVENTS 64u
#define IMAGE_BUCKETS 64u
#define IMAGE_INSTANCES 8u /* GPU instances, and compute instances in each */
#define IMAGE_LIMITS 64u
#define IMAGE_CGROUP_PATH 256u
#define IMAGE_SERVERS 16u
#define IMAGE_CGROUPS 8u     /* of a process: its own and those above it */
#define IMAGE_CHANNELS 32u   /* the maximum of CUDA_DEVICE_MAX_CONNECTIONS */
#define IMAGE_LAUNCHES 1024u /* waiting or running */
#define IMAGE_ENDS 4096u
#define IMAGE_ORPHANS 1024u
#define IMAGE_NO_SWITCH UINT32_MAX

/* One process with a context on this GPU. Its memory counts only while that process holds the slot's lock. */
typedef struct {
    uint64_t pid;         /* in the process's own namespace: only the process itself compares it */
    uint64_t start_ticks; /* when that process started, since pids are reused */
    _Atomic uint64_t memory_bytes;
    uint64_t instance;               /* its GPU instance, as id + 1; 0: the whole GPU */
    uint64_t compute_instance;       /* its compute instance, as id + 1 */
    uint64_t mps;                    /* the entry of its MPS server, from 1; 0: it is not a client */
    uint64_t server;                 /* the identifier of that server */
    uint64_t partition;              /* its static SM partition, from 1; 0: none */
    _Atomic uint32_t contexts;       /* of an MPS client */
    _Atomic uint32_t ended;          /* what ended the client: see servers.h; 0: nothing */
    uint64_t cgroups[IMAGE_CGROUPS]; /* its own first, then those above; 0 after the last */
} image_slot_t;

/* Memory that its creator has freed while other processes may still have it or a descriptor of it: see shared.h. */
typedef struct {
    uint64_t memory; /* its inode; 0: free entry */
    uint64_t bytes;
    uint64_t instance;
} image_orphan_t;

/* An MPS server that uses the GPU: see servers.h. */
typedef struct {
    _Atomic uint64_t id;     /* unique on the node; 0: free entry */
    _Atomic uint32_t wedged; /* 1: a client was killed with work outstanding, and no work of the others ends */
} image_server_t;

/* The limits of a control group: see limits.h. */
typedef struct {
    uint64_t cgroup;
    uint64_t soft_bytes, hard_bytes;
    char path[IMAGE_CGROUP_PATH]; /* as it was set; empty if that is longer */
} image_limit_t;

/* An entry in a process's queue: a kernel or, with a percent of 0, a point in a stream at which something else
 * happens. The entry is in use until its channel has passed its position. */
typedef struct {
    uint64_t number; /* in the order of the process's launches, from 1; 0: never used */
    uint64_t position;
    uint64_t remaining_ns; /* remaining run time if it gets its full percentage */
    uint64_t ready_ns;     /* when everything it waits for was done; 0: still waiting */
    uint64_t after;        /* a mark that must be reached first; 0: none */
    uint8_t channel, context, order, percent;
    uint8_t faults;        /* 1: it accesses an invalid address at its end */
    _Atomic uint8_t held;  /* it may not finish before its process releases it */
    _Atomic uint8_t begun; /* it runs, or waits to be released */
} image_launch_t;

/* The work of one stream, in order. A stream has a channel only while it has work. */
typedef struct {
    _Atomic uint64_t queued, done; /* counts since the beginning: launches queued, launches ended */
    uint8_t context, order;
    uint16_t launches[IMAGE_LAUNCHES]; /* indices into the queue's launches, by position */
} image_channel_t;

/* The work of one process, at the same index as its slot. Written under the lock of the queues. A queue whose pid
 * and start time differ from the slot's belongs to no process. */
typedef struct {
    uint64_t pid;
    uint64_t start_ticks;
    uint64_t instance;
    uint32_t mps;           /* the entry of its MPS server, from 1: its clients share their time slices; 0: none */
    uint32_t partition;     /* its static SM partition, from 1; 0: none */
    uint32_t percent;       /* the maximum of the GPU that its kernels use at once */
    uint64_t number;        /* of the last launch */
    uint32_t channels_high; /* one past the highest channel ever used */
    uint32_t next;          /* where to start looking for a free launch */
    image_channel_t channels[IMAGE_CHANNELS];
    image_launch_t launches[IMAGE_LAUNCHES];
    uint64_t ended_ns[IMAGE_ENDS]; /* end times of the most recent launches, by number */
    _Atomic uint64_t busy_buckets[IMAGE_BUCKETS];
} image_queue_t;

/* Which process has the GPU now. Times are CLOCK_MONOTONIC. */
typedef struct {
    _Atomic uint64_t at_ns; /* the simulation has been advanced to this time */
    uint64_t slice_end_ns;
    uint64_t checked_ns; /* when the processes with queued work were last checked for life */
    uint32_t current;    /* the index of its queue */
    uint32_t running;
} image_schedule_t;

/* A compute instance: a MIG device, as programs see it. */
typedef struct {
    uint32_t present;
    uint32_t id;
    uint32_t slices;
    uint32_t start; /* first slice in its GPU instance */
    uint8_t uuid_bytes[16];
    char uuid[48];
} image_compute_instance_t;

/* A GPU instance. `present` is set last and cleared first, so a reader sees the whole instance or none. */
typedef struct {
    _Atomic uint32_t present;
    uint32_t id;
    uint32_t profile; /* its number in NVML's header */
    uint32_t start;
    uint64_t memory_bytes;
    image_schedule_t schedule; /* its own: instances do not wait for each other */
    image_compute_instance_t compute_instances[IMAGE_INSTANCES];
} image_instance_t;

typedef struct {
    uint64_t type; /* an nvmlEventType bit */
    uint64_t data; /* the XID, for XID events */
} image_event_t;

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t size_bytes; /* the file's maximum size */

    /* Properties of the GPU. `simgpu create` writes them; they never change. */
    uint32_t node_index; /* position in the node, also its minor number; enumeration may renumber */
    uint32_t cuda_version;
    char driver_version[32];
    char model[96];
    char uuid[48];
    uint8_t uuid_bytes[16];
    char pci_bus_id[32];
    uint64_t memory_bytes;
    uint64_t context_bytes; /* what each context takes of the memory */
    uint32_t compute_capability_major;
    uint32_t compute_capability_minor;
    int32_t numa_node;
    uint32_t pci_switch;   /* GPUs under the same switch are one hop apart; IMAGE_NO_SWITCH: none */
    uint64_t nvlink_peers; /* bit i: linked to the GPU with node_index i */
    uint32_t mig_slices;   /* placements for GPU instances: 8, 4, or 0 without MIG support */
    uint32_t multiprocessors;
    uint64_t context_switch_ns;
    uint8_t fabric_uuid_bytes[16]; /* the NVLink cluster it belongs to; zeros: none */
    uint32_t fabric_clique;
    uint64_t block_bytes; /* allocation granularity; 0: one byte */
    uint64_t kernel_ns;   /* run time of kernels whose names contain none; 0: such kernels do not exist */

    /* Failures. `simgpu fail` and `simgpu heal` write them. */
    _Atomic uint32_t lost;
    _Atomic uint32_t mute;   /* delivers no events */
    _Atomic uint32_t silent; /* while this is set for any GPU, NVML reports none of the node */
    _Atomic uint32_t hung;   /* NVML calls for this GPU do not return */
    _Atomic uint32_t ecc_failed;
    _Atomic uint64_t ecc_uncorrected;
    _Atomic uint64_t event_count; /* events since the beginning; the last IMAGE_EVENTS are kept */
    image_event_t events[IMAGE_EVENTS];

    /* Configuration. NVML's setters write it, one process at a time (gpu_lock_changes). It stays as it is when that
     * process dies, even in the middle of a change. */
    _Atomic uint32_t mig_mode;
    _Atomic uint32_t mig_pending; /* the mode after the next reset */
    _Atomic uint32_t compute_mode;
    image_instance_t instances[IMAGE_INSTANCES];
    _Atomic uint32_t limits_high; /* one past the highest limit ever used */
    image_limit_t limits[IMAGE_LIMITS];
    image_server_t servers[IMAGE_SERVERS]; /* control daemons of MPS write them */

    /* The timeline of kernels: see timeline.h and usage.h. */
    image_schedule_t schedule;
    _Atomic uint64_t busy_buckets[IMAGE_BUCKETS];

    /* The processes that use it. libcuda writes this in each of them. */
    _Atomic uint32_t slots_high; /* one past the highest slot ever used */
    _Atomic uint32_t changes;    /* odd while the slots are being changed: see locks.c */
    image_slot_t slots[IMAGE_SLOTS];
    _Atomic uint32_t orphans_high;
    image_orphan_t orphans[IMAGE_ORPHANS];
} image_t;

/* A GPU's file. It ends with the queue of the highest slot ever used. */
typedef struct {
    image_t image;
    image_queue_t queues[IMAGE_SLOTS];
} image_file_t;

static inline image_queue_t *image_queue(const image_t *image, unsigned index) {
    return &((image_file_t *)(uintptr_t)image)->queues[index];
}

#endif
