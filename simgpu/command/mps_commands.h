/* The commands of `nvidia-cuda-mps-control`, version 2. */
#ifndef SIMGPU_COMMAND_MPS_COMMANDS_H
#define SIMGPU_COMMAND_MPS_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* When the daemon or its server ends. */
typedef enum { MPS_STAYS, MPS_ENDS_NOW, MPS_ENDS_WITHOUT_CLIENTS } mps_end_t;

typedef struct {
    bool multi_user, is_static;
    mps_end_t daemon, server;
    uint64_t deadline_ns; /* of MPS_ENDS_WITHOUT_CLIENTS for the daemon */
} mps_state_t;

extern mps_state_t mps_state;

/* Run a command, and write its answer. */
void mps_command(const char *line, FILE *answer);
/* Write the defaults to the file `limits` in the pipe directory, for people to read. */
void mps_write_defaults(void);

#endif
