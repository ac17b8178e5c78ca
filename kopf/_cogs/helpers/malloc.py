"""
The memory allocator of the process: makes it return large blocks to the system.

The allocator of glibc raises its limit when a large block is freed: later blocks of that size, such as buffers of TLS
or pages of a list, do not return to the system. They leave holes between long-lived objects, so that an operator
grows for hours as its connections open and close. With a fixed limit, large blocks return to the system when freed.
"""

import contextlib
import sys

_M_MMAP_THRESHOLD = -3  # of malloc.h
_LARGE = 256 * 1024
"""
The size (in bytes) from which blocks are large: that of the buffers of TLS.

Why not smaller? Each large block needs new pages from the system, which takes time; chunks of streams are smaller.
"""


def release_large_blocks() -> None:
    """Make the allocator return large blocks to the system as soon as they are freed; only with glibc."""
    if sys.platform != 'linux':
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):  # other C libraries have neither the function nor the problem
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
