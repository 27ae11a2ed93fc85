"""The arbiter: says to each process of a share container how much memory its container may hold, and when to launch.

All of it runs in a process of its own, so that no lease waits for what else the agent does; `deviceplugin.link` is the
agent's end.

identity         which pod and container a process belongs to, by its cgroup; pure
tenant           what that container was given, by the pods of this node and the GPUNode; pure
wire             messages to and from bytes; pure
kernel_process   what the kernel says of a process: alive or not, since when, what it has mapped
pages            the shared pages themselves
ledger_record    who has which slot, on disk, so that a restart forgets nothing
share_ledger     one share's ledger: slots taken, slots freed
inheritance          what the last agent left, and until when something of that may be missing
share_ledgers        all of this node's
timetable            when each share launches while there is no arbiter; pure
account              what a share has coming to it of a GPU's time, and may take; pure
next_share           who is next; pure
wait_queue           those that wait, kept in that order; pure
share_resizing       what shares have, kept true to the GPUNode while they run
seat                 one share at a GPU: its books, its lease, what it is told, when it lends the GPU; pure
lease_scheduler      one GPU's leases, given, taken back, ended; pure: events in, commands out
gangs                the same for shares that have several GPUs together; pure; coscheduled_gpu: what it asks of each
gpu_leases           the same with clients and messages; leases: for all GPUs, with a clock
debt_cache           what shares owe that have no process now; pure
recent, wait_clock   what part of the last seconds a share used a GPU, and for how long it waited for it; pure
rate_limiter         how often is too often; pure; connection_limits: how fast each container
                     may talk, and how many connections it has
client_connection    one client's; socket_server: the socket
messages             what is said between this process and the agent's; pure; channel: the way there
agent_channel        the agent at its other end; __main__: all of it put together
"""
