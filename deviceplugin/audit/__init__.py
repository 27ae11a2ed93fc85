"""The audit: every two seconds, compares what runs on the GPUs with the limits that should apply, and reports
differences.

The library enforces limits only in processes that load it. The audit checks from outside: NVML lists the processes on
each GPU, the arbiter the registered ones, the kernel their containers and mapped files, and the GPUNode the limits.

auditor          the loop; kills processes that bypass their limits, if configured
process_listing  reads NVML, the ledgers and the kernel
node_audit       the observations, and the result: as values, JSON, condition, Event messages and metrics
process_limits   which processes are limited, and whether each share's limits are in force; pure
killed_clients   MPS servers whose clients may hang because one of them was killed; pure
excess           which shares use more GPU time than the arbiter allows, and recent usage by the driver; pure
overhead         memory beyond the charges, context sizes, and memory that no known process accounts for
"""
