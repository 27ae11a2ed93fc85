"""The parts of `bad_days.py`: a faulty proxy to the API server, and the failures of each day."""
