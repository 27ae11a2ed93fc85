"""The arbiter: tells the processes of share containers how much GPU memory they may use, and when they may launch.

It is a separate process, so that no lease waits for the agent's other work. `deviceplugin.link` is the agent's side.

  tenant             finds the share of a container in the node's pods and the GPUNode; pure
  ledgers            the shared memory in which processes count what they allocate
  share_resizing     applies changes of the GPUNode to running shares
  departed           delays a share until processes of deleted pods have freed its memory
  scheduling         leases: which share may launch on a GPU
  wire               encodes and decodes messages of the interposer library; pure
  connection_limits  connections and message rates per container
  client_connection  one connection of the library
  socket_server      the socket that the library connects to
  messages           the messages between agent and arbiter; pure
  channel            the socket pair that carries them
  agent_channel      the arbiter's end of the channel
  __main__           the program
"""
