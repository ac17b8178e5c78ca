"""
The Kubernetes API: everything that goes over the network.

The layers above see `ApiClient` and the verbs built on it (discovery, patching, events),
and typed errors; they know nothing of HTTP libraries, credentials or retries.
"""
