"""gpushare: pods share GPUs by annotation.

This package is the domain: values in, values out; no I/O, no clock, no logging. The words, used everywhere alike:

share           what a pod asks of one GPU: compute (request, limit) and memory
allocation      a share given on a GPU
GPUNode         the cluster object that lists one node's GPUs and allocations; together they are the **ledger**
placement       choosing node and GPU; a **refusal** is a value with a reason sentence
gated           admitted, not yet placed
arbiter         decides on the node who may launch now and how much memory is left
lease           the right to launch until it is taken back
mode            what a GPU is used for: fractional (annotations), exclusive, time-slicing, mps, mig
fragmentation   free capacity that the typical request cannot use
"""

__version__ = "0.2.0"
