"""The arbiter: tells the processes of share containers how much GPU memory they may use, and when they may launch.

It is a separate process, so that no lease waits for the agent's other work. `deviceplugin.link` is the agent's side.

  tenant             finds the share of a container in the node's pods and the GPUNode; pure
  pages              the shared memory in which processes count what they allocate, and their limits
  share_ledger       one share's ledger, and the record of it for the next agent
  share_ledgers      all ledgers of the node
  share_resizing     memory that passes from one share to another
  timetable          when shares launch while no arbiter runs; pure
  scheduling         leases: which share may launch on a GPU
  wire               encodes and decodes messages of the interposer library; pure
  client_connection  one connection of the library
  socket_server      the socket that the library connects to
  messages           the messages between agent and arbiter, and the channel that carries them
  agent_channel      the arbiter's end of the channel
  __main__           the program
"""
