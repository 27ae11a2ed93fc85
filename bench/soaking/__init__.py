"""The parts of `soak.py`: processes that count what they have of themselves, what is done to them, and what is flat."""
