"""gpushare: pods share GPUs by annotation.

This package is the domain: values in, values out; no I/O, no clock, no logging. ARCHITECTURE.md, Words, defines its
terms.
"""

__version__ = "0.3.0"
