"""
The cogs: building blocks for Kubernetes and Python, independent of operators and handlers.

The packages are layered too: clients > configs > structs > aiokits > helpers; each imports only those to its right.
"""
