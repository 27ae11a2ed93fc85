"""The parts of `bad_days.py`: a way to the API server that can be made bad, and what is done on each day."""
