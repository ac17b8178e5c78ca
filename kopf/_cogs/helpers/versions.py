"""What we call ourselves: the version of the package, and the user agent made of it.

The version is written here and nowhere else: the package is built with it. Reading it from the metadata of installed
packages would take longer than importing most of the framework.
"""

version = '0.1.0'
"""The version of the package."""

user_agent = f'kopf/{version}'
"""The value of the HTTP header ``User-Agent`` of all requests of the framework."""
