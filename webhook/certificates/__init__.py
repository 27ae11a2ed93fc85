"""TLS certificates of the webhook: issued and rotated by us and shared between replicas, or mounted.

rotation                 which step brings the certificates to their desired state, and how it is done; pure
certificate_controller   the Secret that all replicas share, the API server's trust in it, and our TLS context
tls                      the TLS context of the server, and the certificates of another issuer, from a mounted Secret
"""
