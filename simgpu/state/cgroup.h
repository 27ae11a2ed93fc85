/* The control groups of version 2, by numbers that are the same in every mount and namespace: their inodes. */
#ifndef SIMGPU_CGROUP_H
#define SIMGPU_CGROUP_H

#include <stddef.h>
#include <stdint.h>

/* 0: there is no such directory, or it is no control group of version 2. */
uint64_t cgroup_of(const char *path);

/* The asking process's own and those above it, as far up as its mount shows them; returns how many. */
size_t cgroup_own(uint64_t *cgroups, size_t capacity);

#endif
