"""Leases of GPUs: which share may launch on a GPU, and for how long.

next_share       picks the share to serve next; pure
account          how much GPU time a share is owed and may still use; pure
wait_queue       the waiting shares of one GPU, sorted; pure
gpu_share        one share's state at one GPU; pure
lease_scheduler  grants, revokes and ends the leases of one GPU: events in, commands out; pure
coscheduled_gpu  the same scheduler, with the operations that gangs need; pure
gangs            schedules shares that use several GPUs together; pure
lease_history    recent use, waiting times, and the debts of shares without a process; pure
gpu_leases       turns messages of clients into scheduler events, and commands into messages
leases           the leases of all GPUs, with timers
"""
