/* The MPS server of a control daemon. A daemon has one server at a time, which starts for the first client and stays
 * until it is shut down. In reality it owns the GPU's contexts; here it is a process that does nothing, and the
 * daemon keeps its entries in the GPUs' files. */
#ifndef SIMGPU_COMMAND_MPS_SERVER_H
#define SIMGPU_COMMAND_MPS_SERVER_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "image/gpus.h"
#include "state/slots.h"

/* The limits of each client of a server: the daemon's defaults when the server started, unless they were set since. */
typedef struct {
    double percent;
    uint64_t pinned_bytes[IMAGE_MAX_GPUS]; /* by the daemon's device numbers; 0: no limit */
} mps_limits_t;

extern mps_limits_t mps_defaults;

/* The GPUs that the daemon serves, by its device numbers. They are looked for once, in the environment's directory,
 * or, if there are none, in the first client's. */
void mps_find_gpus(const char *directory);
unsigned mps_gpu_count(void);
gpu_t *mps_gpu(unsigned device);
/* Return the GPU with this number or UUID, which may be shortened; -1: there is none. */
int mps_device(const char *name);

void mps_server_start(uid_t user);
/* End the server and its clients. */
void mps_server_end(void);
/* If the server's process has died by itself, end its clients. */
void mps_server_reap(void);
/* Return the server's process; 0: there is no server. `pidfd`: to wait for its end. */
pid_t mps_server_pid(void);
int mps_server_pidfd(void);
uid_t mps_server_user(void);
mps_limits_t *mps_server_limits(void);
/* Return the server's entry on a GPU. */
unsigned mps_server_entry(unsigned device);
/* Whether a client still has to exit after a fault. */
bool mps_server_has_fault(unsigned partition);

/* List the server's living clients on a GPU whose pids the daemon can see. `holders` has room for IMAGE_SLOTS. */
size_t mps_server_clients(unsigned device, slot_holder_t *holders);
/* End a client, on all GPUs. False: there is none with this pid. */
bool mps_server_terminate(pid_t client);

/* Write lines to the daemon's log. */
void mps_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
