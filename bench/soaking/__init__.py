"""The parts of `soak.py`: processes that count their own tasks, and the test for flat series."""
