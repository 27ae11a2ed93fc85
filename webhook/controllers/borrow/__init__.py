"""Borrowed GPUs: placeholders take whole GPUs of another device plugin while shares need them.

borrow_controller  keeps ledger and placeholders in step, and adds to the reasons of waiting pods what is asked for
borrow_history     what the API server does not keep of placeholders: idle times and pauses; pure
borrow_packing     which GPUs of which nodes the waiting pods need
placeholders       placeholders as objects; pure
"""
