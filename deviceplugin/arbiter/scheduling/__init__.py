"""Leases of GPUs: which share may launch on a GPU, and for how long. All but `leases` is pure: events in, commands out.

account           how much GPU time a share is owed and may still use, and which share goes first
gpu_share         one share's state at one GPU, its recent use, waiting times and debts
lease_scheduler   grants, revokes and ends the leases of one GPU
coscheduled_gpu   the same scheduler, with the operations that gangs need
gangs             schedules shares that use several GPUs together
leases            turns messages of clients into events, and commands into messages, with timers
"""
