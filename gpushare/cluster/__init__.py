"""The only client of the API server: every read and write of the daemons goes through this package.

api_connection     the API server's address, and our credentials
api_client         raw JSON over HTTP: get, list, create, replace, patch, delete, watch
transport          HTTP to the API server: sockets, TLS, proxies
items              parses a list object by object while it arrives; pure
api_errors         errors of the API server, as exceptions of our own
object_store       a copy of one collection in memory, and its changes; pure
informer           keeps an object store in sync by list and watch
part               a second view of an informer's objects, so that two readers share one watch
compare_and_swap   changes one object without a lock
lease              who leads among replicas, by a Lease; pure
election           the loop that reads and renews the Lease
events             sends Events for `kubectl describe`
event_series       which Events are worth a call; pure
backoff            how long to wait before the next retry; pure
repeating          runs a step whenever it is woken, and retries it

Objects are plain dicts, as in JSON: the typed models of a generated client cost several times the memory and the time,
and drop fields that they do not know.
"""
