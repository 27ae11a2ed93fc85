"""The arbiter: says to each process of a share container how much memory its container may hold, and when to launch.

identity    which pod and container a process belongs to, by its cgroup; pure
tenant      what that container was given, by the pods of this node and the GPUNode; pure
lookup      the same, asking the API server where the informers do not know yet
wire        messages to and from bytes; pure
process     what the kernel says of a process: alive or not, since when, what it has mapped
pages       the shared pages themselves
record      who has which slot, on disk, so that a restart forgets nothing
group       one share's ledger: slots taken, slots freed
inheritance what the last agent left
groups      all of this node's
account     what a share has coming to it of a GPU's time, and may take; pure
choice      who is next; pure
resizing    what shares have, kept true to the GPUNode while they run
turns       one GPU's leases, given, taken back, ended; pure: events in, commands out
leases      the same for all GPUs, with clients, messages and a clock
pace        how often is too often; pure
connection, server   the socket
"""
