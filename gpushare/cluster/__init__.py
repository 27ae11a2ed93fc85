"""The client of the API server: all reads and writes of the cluster by our daemons pass through here.

api_connection     finds the API server and the credentials
api_client         raw JSON over HTTP: get, list, create, replace, patch, delete, watch
transport          one HTTP request to the API server
api_errors         the API server's refusals as exceptions
object_store       a copy of one collection in memory, and its changes; pure
informer           keeps a store current by list and watch; its Part is a view of a store with fewer fields
retrying           the pause before the next try, a loop that is woken, changes of one object without a lock
election           one leader among replicas
events             sentences for `kubectl describe`

Objects are plain dicts, as JSON has them: the typed models of a generated client cost several times the memory and the
time, and drop fields that they do not know.
"""
