"""TLS certificates of the webhook: issued and rotated by us and shared between replicas, or mounted.

rotation                 which step brings the certificates to their desired state; pure
issuing                  makes keys and certificates, one step at a time
certificate_controller   the Secret that all replicas share, the API server's trust in it, and our TLS context
mounted                  certificates of another issuer, read from a mounted Secret
ca_bundle                our CA in the MutatingWebhookConfiguration
tls                      the TLS context of the server, and certificates loaded into it
"""
