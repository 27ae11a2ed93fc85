#ifndef SIMGPU_COMMAND_MPS_DAEMON_H
#define SIMGPU_COMMAND_MPS_DAEMON_H

/* Serve commands and clients, in the pipe directory, until `quit`. */
void mps_serve(int listener);

#endif
