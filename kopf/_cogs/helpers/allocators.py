"""
How the process gets memory from the system, and gives it back.

The allocator of glibc learns from the first large block that is freed: blocks of that size, such as the buffers of TLS,
or a page of a list, do not go back to the system any more. They leave holes among what stays, so that an operator,
whose connections come and go, grows for hours. With a fixed limit, large blocks are always given back at once.
"""

import contextlib
import sys

_M_MMAP_THRESHOLD = -3  # of malloc.h
# The buffers of TLS have exactly this size (bytes). New pages of memory cost time, so what is read from streams, and
# is usually smaller, should not be affected.
_LARGE = 256 * 1024


def give_back_large_blocks() -> None:
    """Let the system have large blocks of memory as soon as they are free; only where there is glibc."""
    if sys.platform != 'linux':
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # other libraries have no such function, and no such need
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
