"""The API server's only client: everything a daemon of ours reads from the cluster or writes to it passes here.

api_connection     where the API server is, and how we prove who we are
api_client         raw JSON over HTTP: get, list, create, replace, patch, delete, watch
api_errors         what the API server refuses, as our own tree
object_store       a copy of one collection in memory, and what changed; pure
informer           keeps a store true by list and watch; part: what some readers need of it, as a copy of their own
compare_and_swap   change one object without a lock
lease              one leader among replicas
events             sentences for `kubectl describe`
backoff            how long to wait before the next try; pure
repeating          a writer that works when it is woken, and tries again

Objects are plain dicts, as JSON has them: the typed models of a generated client cost several times the memory and
the time, and drop fields that they do not know.
"""
