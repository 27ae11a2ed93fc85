"""A burst of pods on a real API server: who sends it, who answers it, and whether the ledger is true afterwards."""
