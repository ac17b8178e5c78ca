"""
The version of the package, and the user agent made of it.

The version is written here and nowhere else: the package is built with it. Reading it from the metadata of installed
packages would take longer than importing most of the framework. Its first two numbers go on from those of upstream's
version that this package is compatible with: other people's packages ask for ``kopf>=1.x``.
"""

version = '1.46.0'
"""The version of the package."""

compatibility = 'a new implementation, compatible with upstream kopf 1.45.2'
"""What tells this package from upstream's, which has the same name."""

user_agent = f'kopf/{version}'
"""The value of the HTTP header ``User-Agent`` of all requests of the framework."""
