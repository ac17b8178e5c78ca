"""
Identifiers that travel between the layers.

Only the type is here: how an id is made of a function and its field is known where handlers are declared,
and how it becomes a key of an annotation is known where it is stored.
"""

from typing import NewType

HandlerId = NewType('HandlerId', str)
