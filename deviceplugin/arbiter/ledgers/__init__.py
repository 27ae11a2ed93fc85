"""Ledgers: shared memory in which the processes of a share count the GPU memory that they hold.

pages          the shared pages: limits (read-only for processes) and ledger
share_ledger   one share's ledger, and the process in each of its slots
share_ledgers  all ledgers of the node
ledger_record  the file that maps slots to processes, so that a restart loses nothing
recovery       takes over the ledgers of the previous agent, and remembers when records were lost
exec_checker   finds processes that have become another program
timetable      when each share launches while no arbiter runs; pure
"""
