/* Pieces of physical memory, and what refers to each: handles, mappings into addresses, mappings into sparse arrays. A
 * piece lives as long as anything refers to it, whichever ends last.
 *
 * Each piece gets a number of our own, since the driver may use a handle's value again the moment it is free. The lock
 * is held for the tables only, never across a call to the driver: what a call will do is noted before it and undone if
 * it failed, or noted after it, so that the bytes are charged for at least as long as they exist. */
#ifndef GPUSHARE_PHYSICAL_H
#define GPUSHARE_PHYSICAL_H

#include <stdbool.h>

#include "driver/hooks.h"

#define PHYSICAL_NONE 0u /* no piece that is known, and nothing to do about it */

/* A handle that the driver has just given. `bytes` are charged already; 0 of memory that somebody else is charged for.
 * False: no memory to note it in. */
bool physical_create(CUmemGenericAllocationHandle handle, uint64_t bytes, uint32_t gpu);

/* One more reference by this handle to what it or that address refers to. */
bool physical_import(CUmemGenericAllocationHandle handle);
void physical_retain(CUmemGenericAllocationHandle handle, uint64_t address);

/* Around a real release: the handle is taken out, then what it referred to is let go, or given back to it. From before
 * on the piece is not there for certain, until it is known that something else refers to it. */
uint64_t physical_begin_release(CUmemGenericAllocationHandle handle);
void physical_cancel_release(CUmemGenericAllocationHandle handle, uint64_t number);

uint64_t physical_reference(CUmemGenericAllocationHandle handle); /* the piece's number */
void physical_unreference(uint64_t number);
void physical_end_release(uint64_t number);

/* Before an export: others may hold it for longer than we do. */
void physical_mark_exported(CUmemGenericAllocationHandle handle);

void physical_map(CUdeviceptr pointer, uint64_t bytes, uint64_t number);
/* Before a real unmapping, and after it. */
void physical_begin_unmap(CUdeviceptr pointer, uint64_t bytes);
void physical_end_unmap(CUdeviceptr pointer, uint64_t bytes, bool done);

/* A sparse array refers to what was mapped into it until it is destroyed. */
void physical_map_array(uint64_t array, uint64_t number);
void physical_drop_array(uint64_t array);

#endif
