"""The audit: compares what runs on the GPUs with what is held to a limit, every two seconds, and says what is not.

The library keeps a share's limits only in processes that it is in. Here is looked at the node from outside: NVML knows
every process on a GPU, the arbiter those that are registered, the kernel whose they are and what they have mapped, the
GPUNode what they may have.

seen              what was seen at one moment; values
process_limits    which of the processes are held to a limit; pure
share_limits      whether the limits of each share are in force; pure
node_audit        what is to be said of them; values
audit_document    the same as JSON, and as the GPUNode's condition; figures: as metrics; pure
overhead          what processes hold beyond what they have charged, from one look to the next; pure
excess            which shares use a GPU for longer than the arbiter lets them, and how much they used lately, by the
                  driver; pure
contexts          what a context takes of a GPU, learned from that, and kept for the next agent
process_listing   asks NVML, the ledgers and the kernel
ending            kills a process that got around its limits, where that is asked for
auditor           the loop
"""
