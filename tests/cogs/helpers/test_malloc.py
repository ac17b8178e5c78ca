"""What is free belongs to the system again: seen in processes of their own, as it is set for the whole process."""

import platform
import subprocess
import sys
import textwrap

import pytest

SCRIPT = textwrap.dedent("""
    import sys
    from kopf._cogs.helpers.malloc import release_large_blocks

    def measure():
        with open('/proc/self/statm') as f:
            return int(f.read().split()[1]) * 4 // 1024

    if 'fixed' in sys.argv:
        release_large_blocks()
    for _ in range(3):
        block = b'x' * 300_000
        del block  # from now on, the allocator believes that such blocks come again
    # What is free inside already must not take the small ones: they are to be between the large ones.
    filling = [b'%d' % number * 7_000 for number in range(100, 600)]
    before, large, small = measure(), [], []
    for number in range(100, 300):
        large.append(b'%d' % number * 100_000)
        small.append(b'%d' % number * 7_000)
    peak = measure()
    large.clear()
    print(peak - before, measure() - before)
""")


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason="only glibc is concerned")
@pytest.mark.parametrize('mode', ['fixed', 'usual'])
def test_large_blocks_are_given_back(mode):
    command = [sys.executable, '-c', SCRIPT, mode]
    # No variables, as their length decides where blocks lie, and so which of them can be given back.
    done = subprocess.run(command, capture_output=True, check=True, text=True, env={})
    peak, rest = map(int, done.stdout.split())
    assert peak > 30  # MB
    assert (rest < 10) == (mode == 'fixed')
