/* Static SM partitions of GPUs under MPS, for a daemon with -S: from CUDA 13.1, from Ampere on. They belong to the
 * daemon and last until it quits. */
#ifndef SIMGPU_COMMAND_MPS_PARTITION_H
#define SIMGPU_COMMAND_MPS_PARTITION_H

#include <stdbool.h>
#include <stdio.h>

/* `sm_partition add UUID CHUNKS`, `sm_partition rm UUID ID` and `lspart`. */
void mps_partition_add(const char *uuid, unsigned chunks, FILE *answer);
void mps_partition_remove(const char *uuid, const char *id, FILE *answer);
void mps_partition_list(FILE *answer);

/* Return the number of the partition with this name, UUID/ID, from 1; 0: there is none. */
unsigned mps_partition_find(const char *name, unsigned *multiprocessors_p);

/* Whether the driver of all GPUs knows such partitions. */
bool mps_partitions_are_known(void);

#endif
