/* Control groups of version 2, identified by their inodes, which are the same in all mounts and namespaces. */
#ifndef SIMGPU_CGROUP_H
#define SIMGPU_CGROUP_H

#include <stddef.h>
#include <stdint.h>

/* Return 0 if the directory does not exist or is not a control group of version 2. */
uint64_t cgroup_of(const char *path);

/* Write the calling process's control group and those above it, as far as its mount shows them. Returns their
 * number. */
size_t cgroup_own(uint64_t *cgroups, size_t capacity);

#endif
