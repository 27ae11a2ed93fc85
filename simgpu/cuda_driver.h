/* What the parts of the simulated driver know of each other. */
#ifndef SIMGPU_CUDA_DRIVER_H
#define SIMGPU_CUDA_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "channels.h"
#include "cuda_abi.h"
#include "cuda_handle.h"
#include "gpus.h"
#include "timeline.h"

#define MAX_CONTEXTS (2 * IMAGE_MAX_GPUS) /* primary ones by their device, then all others */
#define LIMITS 10u

struct CUctx_st {
    bool alive;
    bool primary;
    unsigned references; /* of a primary context */
    unsigned flags;
    unsigned number; /* in the table of contexts */
    CUdevice device;
    gpu_t *gpu;
    uint64_t id;                    /* no other context of this process ever has it */
    size_t limits[LIMITS];          /* as cuCtxSetLimit set them; 0: as they are at first */
    unsigned cache, banks;          /* what the program prefers */
    uint64_t peers;                 /* bit i: it may use the memory of device i's contexts */
    _Atomic uint64_t fault;         /* when a kernel of it fails: nothing works in it from then on; 0: never */
    _Atomic uint64_t last_mark;     /* of the end of everything launched in it: see channels.h */
    _Atomic uint64_t blocking_mark; /* the same of what its legacy default stream waits for */
    _Atomic uint64_t legacy_mark;   /* of the end of that stream itself */
    _Atomic unsigned captures;      /* streams that are being captured now */
};

/* cuda_device.c: SUCCESS after cuInit, in the process that called it. */
CUresult driver_ready(void);
/* Of CUDA, as the node's description has it; 0: there is no GPU that could tell. */
int driver_version(void);
CUresult driver_gpu(CUdevice device, gpu_t **gpu_p);
/* Its number for CUDA; -1: it has none. */
CUdevice driver_device(const gpu_t *gpu);

/* cuda_visible.c: which devices there are for this process. A GPU in MIG mode is none, its MIG devices are. */
unsigned visible_devices(gpu_t *gpus, unsigned present, gpu_t **devices);
const image_part_t *visible_part(const gpu_t *gpu);
const image_instance_t *visible_instance(const gpu_t *gpu);

/* cuda_context.c: the calling thread's context, on a GPU that still works. */
CUresult context_current(CUcontext *context_p);
CUresult context_usable(CUcontext context);
/* Of one that something belongs to: it may have ended, and its place may be another one's. */
CUresult context_usable_as(CUcontext context, uint64_t id);

/* cuda_mps.c: whether the GPU's compute mode lets this process in, be it as a client of MPS. */
bool mps_admits(const gpu_t *gpu);
bool mps_is_client(void);
/* What MPS lets this process hold on a device; 0: no limit. */
uint64_t mps_limit_bytes(CUdevice device);
/* How much of a device MPS lets its kernels have at once. */
unsigned mps_percent(void);

/* cuda_memory.c: one allocation. It belongs to a context, and ends with it, or to a pool. */
typedef struct {
    gpu_t *gpu;
    CUcontext context;
    CUmemoryPool pool;
    size_t bytes;
    int memory; /* that other processes can map, and where in it; -1: nobody can */
    uint64_t offset;
    bool managed;
    struct block *block; /* that it shares with others: cuda_block.h */
    uint64_t id;         /* no other allocation of this process ever has it */
} allocation_t;

/* Backs and records what has been charged already. False: the address space is full. */
bool memory_map(const allocation_t *allocation, int map_flags, CUdeviceptr *pointer_p);
/* Where a free was put into a stream; NULL: all that used the memory has ended. */
typedef struct {
    const void *stream;
    gpu_t *gpu;
    uint64_t mark;
} free_point_t;
CUresult memory_free(CUdeviceptr pointer, const free_point_t *point);
void memory_free_context(CUcontext context);
/* One that begins there. False: there is none. */
bool memory_find(CUdeviceptr pointer, allocation_t *found);
/* The one that an address is in, and where that begins. */
bool memory_around(CUdeviceptr address, CUdeviceptr *start, allocation_t *found);
/* As memory_find, of one that is no pool's: from now on other processes can map it. */
bool memory_share(CUdeviceptr pointer, allocation_t *found);

/* cuda_share.c: which GPU it is on, of memory that has been given to this process; NULL: none of its own. */
gpu_t *share_gpu(int memory);

/* cuda_pointer.c: what an address that the driver knows is in. */
typedef struct {
    CUdeviceptr start;
    size_t bytes;
    gpu_t *gpu;        /* NULL: of the host */
    CUcontext context; /* NULL: it belongs to none */
    CUmemoryPool pool;
    bool on_host;
    bool managed;
    bool legacy_ipc; /* can be told to others by cuIpcGetMemHandle */
    uint64_t id;
} place_t;
bool pointer_place(CUdeviceptr address, place_t *place);
/* All of it is memory that the driver knows, be it of several allocations. */
bool pointer_range(CUdeviceptr start, size_t bytes);

/* cuda_vmm.c, cuda_share.c, cuda_graph_memory.c, cuda_host.c: each of what is there. */
bool mapping_place(CUdeviceptr address, place_t *place);
bool opened_place(CUdeviceptr address, place_t *place);
bool graph_memory_place_of(CUdeviceptr address, place_t *place);
bool host_place(CUdeviceptr address, place_t *place);

/* cuda_pool.c */
void pool_take_back(const allocation_t *block, const free_point_t *point);
/* The program has waited for the GPU: pools give back what is above their thresholds. */
void pools_waited(void);

/* cuda_array.c, cuda_vmm.c */
void array_free_context(CUcontext context);
/* One more reference to the memory, or one less. False: there is no such handle. */
bool handle_hold(CUmemGenericAllocationHandle handle);
void handle_drop(CUmemGenericAllocationHandle handle);

/* cuda_kernel.c. What a kernel's name says of it. */
typedef struct {
    uint64_t duration_ns;
    unsigned percent; /* of the GPU */
    unsigned meeting; /* how many of its kind must have begun before it goes on; 0 or 1: it waits for nobody */
    uint64_t key;     /* which kind; 0: that of its process */
} kernel_t;
CUresult kernel_launch(CUfunction function, CUstream stream, bool per_thread, void **parameters);
/* False: it is for the parameters to say, and they do not. */
bool kernel_duration(CUfunction function, const gpu_t *gpu, void **parameters, uint64_t *duration_ns_p);

/* cuda_launch.c: into the stream, or into the graph that it is being captured to. */
CUresult launch_submit(CUcontext context, CUstream stream, bool per_thread, const kernel_t *kernel);
/* Work of any kind, whose context and order are the stream's. Returns the mark of its end. */
uint64_t stream_put(CUcontext context, CUstream stream, bool per_thread, gpu_work_t work);

/* cuda_order.c: something else in the order of a stream. When the stream has come to it, `act` is asked again and again
 * until it says that it is done, and then the stream goes on. Who asks is a thread of the driver: one for what GPUs do
 * by themselves, where nothing may take long, and one for functions of the program. `argument` is freed after the end,
 * and if it fails. */
typedef enum { ACTOR_GPU, ACTOR_HOST } actor_t;
typedef bool (*stream_action_t)(void *argument);
CUresult stream_enqueue(CUcontext context, CUstream stream, bool per_thread, actor_t actor, stream_action_t act,
                        void *argument);
/* The same, for a kernel that keeps its part of the GPU until then, and does its work afterwards. */
CUresult stream_enqueue_work(CUcontext context, CUstream stream, bool per_thread, gpu_work_t kernel, actor_t actor,
                             stream_action_t act, void *argument);

/* Whether any stream of the process has any of that in it. If not, the order of what takes no time does not matter. */
bool stream_actions_pending(void);

/* cuda_meeting.c */
CUresult meeting_launch(CUcontext context, CUstream stream, bool per_thread, const kernel_t *kernel);

/* cuda_graph.c */
void graph_append(CUgraph graph, uint64_t duration_ns);
void graph_begin_capture(CUgraph graph, CUstream origin);
void graph_empty(CUgraph graph);
CUstream graph_capture_origin(CUgraph graph);
uint64_t graph_capture_id(CUgraph graph); /* never 0, and never of another capture */
CUcontext graph_context(CUgraph graph);
/* What a graph does besides kernels and memory: cuda_copy.h has copy_t and fill_t. */
typedef enum { WORK_COPY, WORK_FILL, WORK_HOST, WORKS } work_t;
bool graph_append_work(CUgraph graph, work_t work, const void *what);
CUresult graph_allocate(CUgraph graph, CUdevice device, size_t bytes, CUdeviceptr *pointer, CUgraphNode *node_p);
CUresult graph_free(CUgraph graph, CUdeviceptr pointer);

/* cuda_graph_memory.c: where the allocations of a graph are, and when there is memory. */
#define GRAPH_RANGES 256u
typedef struct {
    CUdeviceptr pointer;
    uint64_t bytes;
    CUdevice device;
    bool taken; /* by an allocation that no later node has freed */
} graph_range_t;
typedef struct {
    graph_range_t ranges[GRAPH_RANGES];
    unsigned count;
} graph_memory_t;
typedef struct {
    CUdeviceptr pointer;
    size_t bytes;
    CUdevice device;
} graph_block_t;
CUresult graph_memory_place(graph_memory_t *memory, CUdevice device, size_t bytes, graph_block_t *block);
bool graph_memory_unplace(graph_memory_t *memory, CUdeviceptr pointer);
bool graph_memory_join(graph_memory_t *memory, const graph_memory_t *child);
/* Before a launch, after it, and when the executable graph goes. */
CUresult graph_memory_begin(CUgraphExec exec, const graph_memory_t *memory, const void *stream);
void graph_memory_until(CUgraphExec exec, gpu_t *gpu, uint64_t mark);
void graph_memory_forget(CUgraphExec exec);
/* False: it is not one that a graph left unfreed. */
bool graph_memory_free(CUdeviceptr pointer);

/* cuda_stream.c: where the graph is that a stream is being captured to; NULL for a default stream, which cannot be. */
CUgraph *stream_capture(CUstream stream);
bool stream_is_capturing(CUstream stream);
/* The forms for per-thread default streams: the handle 0 means the thread's own, which has a handle, too. */
static inline CUstream stream_of(CUstream stream, bool per_thread) {
    return stream == NULL && per_thread ? (CUstream)2 : stream;
}
/* The one that it is of; the current one for a default stream. */
CUresult stream_context(CUstream stream, CUcontext *context_p);
/* cuda_stream_state.c: the nearest priority that there is. */
int stream_priority(int wanted);

/* cuda_capture.c: the stream goes, and with it what was captured of it. */
void capture_abandon(CUstream stream);
/* A stream that waits for an event of a capture belongs to the capture from then on. */
CUresult capture_join(CUgraph graph, CUstream stream);

/* The mark of a stream's end. `per_thread`: what the handle 0 means. */
_Atomic uint64_t *stream_end(CUcontext context, CUstream stream, bool per_thread);
order_t stream_order(CUstream stream, bool per_thread);

#endif
