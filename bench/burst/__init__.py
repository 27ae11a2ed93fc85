"""A burst of pods on a real API server: the sender, the webhooks, and the check of the ledger afterwards."""
