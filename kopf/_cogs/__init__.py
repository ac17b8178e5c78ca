"""
The cogs: Kubernetes and Python building blocks that know nothing about operators and handlers.

The packages are layered too: clients > configs > structs > aiokits > helpers; each imports only those to its right.
"""
