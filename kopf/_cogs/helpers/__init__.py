"""The Python world around the framework: modules to load, versions, names of hosts.

Nothing here knows about Kubernetes or asyncio, so that every other package may use it.
"""
