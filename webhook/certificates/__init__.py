"""Our TLS: certificates that we make ourselves, rotate, and share between replicas, or that are given to us.

rotation                 which certificates there are, and which step brings them to what they should be; pure
issuing                  makes keys and certificates, one step at a time
certificate_controller   a Secret that all replicas share, the API server's trust in it, and our TLS
mounted                  in place of all these: certificates that somebody else makes, read from a mounted Secret
ca_bundle                our CA in the MutatingWebhookConfiguration
tls                      the context that serves, and new certificates loaded into it
"""
