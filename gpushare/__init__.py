"""gpushare: pods share GPUs by annotation.

This package is the domain: values in, values out; no I/O, no clock, no logging. Its words are explained in
ARCHITECTURE.md, Words.
"""

__version__ = "0.3.0"
