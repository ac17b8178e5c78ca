"""
Identifiers that several layers use.

Only the type is here. The declaration of handlers makes an id of a function and its field; the storages convert it
to a key of an annotation.
"""

from typing import NewType

HandlerId = NewType('HandlerId', str)
