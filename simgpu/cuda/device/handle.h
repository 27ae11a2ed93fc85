/* Objects behind handles: streams, events, modules, graphs. A program that uses a handle after its end has a bug,
 * which on a real driver may show in any way and much later. Here the program ends at once, with a sentence. For
 * this, an object begins with its kind, and its memory is kept for a while after its end. */
#ifndef SIMGPU_CUDA_HANDLE_H
#define SIMGPU_CUDA_HANDLE_H

#include <stddef.h>
#include <stdint.h>

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

/* Allocate an object that begins with a handle_head_t; the rest is zero. NULL: no memory. */
void *handle_make(handle_kind_t kind, size_t bytes);
void handle_end(void *object, handle_kind_t kind);
/* Return if the object is of that kind and has not ended; otherwise end the program. NULL is accepted: the caller
 * reports it. */
void handle_check(const void *object, handle_kind_t kind);

#endif
