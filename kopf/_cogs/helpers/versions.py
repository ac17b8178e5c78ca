"""
The version of the package, and the user agent made of it.

The version is written only here: the build reads it from here. Why not simply `importlib.metadata`?
It takes longer than importing most of the framework. The first two numbers continue those of the upstream version
that this package is compatible with, since other packages depend on ``kopf>=1.x``.
"""

version = '1.46.0'
"""The version of the package."""

compatibility = 'a new implementation, compatible with upstream kopf 1.45.2'
"""The note that distinguishes this package from upstream's, which has the same name."""

user_agent = f'kopf/{version}'
"""The value of the HTTP header ``User-Agent`` of all requests of the framework."""

field_manager = user_agent.partition('/')[0]
"""The manager of the fields that the framework patches, in ``metadata.managedFields``: the API derives it from that."""
