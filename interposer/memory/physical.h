/* Pieces of physical memory and the references to each: handles, mapped addresses, and mappings into sparse arrays.
 * A piece lives as long as it has a reference.
 *
 * Each piece has a number of ours, because the driver may reuse a handle's value as soon as it is free. The lock is
 * held for the tables only, never across a call to the driver. A call's effect is either recorded before it and
 * undone on failure, or recorded after it, so that bytes are charged for at least as long as they exist. */
#ifndef GPUSHARE_PHYSICAL_H
#define GPUSHARE_PHYSICAL_H

#include <stdbool.h>

#include "driver/hooks.h"

#define PHYSICAL_NONE 0u /* unknown: nothing to do */

/* Record a handle that the driver has just returned. `bytes` are already charged; 0 if another process is charged
 * for them. Returns false if there is no memory for the record. */
bool physical_create(CUmemGenericAllocationHandle handle, uint64_t bytes, uint32_t gpu);

/* Add a reference by this handle, to the piece that it already refers to or to the one mapped at an address. */
bool physical_import(CUmemGenericAllocationHandle handle);
void physical_retain(CUmemGenericAllocationHandle handle, uint64_t address);

/* Around a real release: the first removes the handle's reference, then it is dropped, or restored if the release
 * failed. Meanwhile the piece does not count as certain. */
uint64_t physical_begin_release(CUmemGenericAllocationHandle handle);
void physical_cancel_release(CUmemGenericAllocationHandle handle, uint64_t number);

uint64_t physical_reference(CUmemGenericAllocationHandle handle); /* returns the piece's number */
void physical_unreference(uint64_t number);
void physical_end_release(uint64_t number);

/* Called before an export: other processes may hold the memory longer than this one. */
void physical_mark_exported(CUmemGenericAllocationHandle handle);

void physical_map(CUdeviceptr pointer, uint64_t bytes, uint64_t number);
/* Called before and after a real unmap. */
void physical_begin_unmap(CUdeviceptr pointer, uint64_t bytes);
void physical_end_unmap(CUdeviceptr pointer, uint64_t bytes, bool done);

/* A sparse array keeps references to the memory mapped into it until it is destroyed. */
void physical_map_array(uint64_t array, uint64_t number);
void physical_drop_array(uint64_t array);

#endif
