"""
The clients of the Kubernetes API: all requests over the network.

The layers above use `ApiClient` and the operations built on it (discovery, patching, events), and get typed errors.
They do not depend on HTTP libraries, credentials or retries.
"""
