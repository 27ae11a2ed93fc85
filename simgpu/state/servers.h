/* The MPS servers that use a GPU, and how their clients end.
 *
 * The control daemon of a server holds the lock of its entry, so a server ends when its daemon dies. Clients have the
 * entry's number and the server's identifier in their slots. A client that has ended keeps its slot, but no memory and
 * no work, and all its calls return the error that is recorded there, until the process exits. */
#ifndef SIMGPU_SERVERS_H
#define SIMGPU_SERVERS_H

#include "image/gpus.h"

/* What ended a client, by CUDA's number of the error that its calls return. */
typedef enum { ENDED_BY_FAULT = 700, ENDED_WITH_SERVER = 806, ENDED_BY_DAEMON = 810 } ended_t;

/* Add a server of this process. Returns its entry, from 1; 0: the table is full. */
unsigned servers_add(gpu_t *gpu, uint64_t id);
/* Remove a server of this process, which has no clients any more. */
void servers_remove(gpu_t *gpu, unsigned server);

/* Return the entry of another process's server; 0: it does not use this GPU. */
unsigned servers_find(const gpu_t *gpu, uint64_t id);
/* Whether a server of another process uses the GPU. */
bool servers_any(const gpu_t *gpu);

/* Whether a living client still has to exit after a fault. For a static SM partition, only faults in it count. */
bool servers_have_fault(const gpu_t *gpu, unsigned server, unsigned partition);

/* Count one more context of this process, which is a client. False: the server has `max` already. */
bool servers_add_context(gpu_t *gpu, unsigned max);
void servers_drop_context(gpu_t *gpu);

/* Record what ended a client, and free its memory. The caller drops its work. */
void servers_end_client(image_t *image, unsigned slot, ended_t why);

/* Whether a fault in a static SM partition ends only the clients in it: from driver 610. */
bool servers_contain_faults(const image_t *image);
/* Whether a server wedges when a client is killed with work outstanding: up to CUDA 13.5. */
bool servers_wedge(const image_t *image);

#endif
