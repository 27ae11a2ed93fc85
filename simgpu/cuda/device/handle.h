/* What programs hold by a handle: streams, events, modules, graphs. To use one after its end is the program's error,
 * and on a real driver anything may come of it, often much later; here the program ends at once, with a sentence. So an
 * object begins with what it is, and its memory stays for a while when it has ended. */
#ifndef SIMGPU_CUDA_HANDLE_H
#define SIMGPU_CUDA_HANDLE_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/abi/abi.h"

typedef enum {
    HANDLE_STREAM = 1,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION,
    HANDLE_GRAPH,
    HANDLE_GRAPH_NODE,
    HANDLE_GRAPH_EXEC,
    HANDLE_KINDS
} handle_kind_t;

typedef struct {
    _Atomic uint64_t word;
} handle_head_t;

/* Zeroed but for its head, which comes first; NULL: no memory. */
void *handle_make(handle_kind_t kind, size_t bytes);
void handle_end(void *object, handle_kind_t kind);
/* Returns only if it is one of that kind, and not ended. NULL is nobody's error but the caller's to tell. */
void handle_check(const void *object, handle_kind_t kind);

#endif
