"""
Data structures: bodies and their views, diffs, patches, references, reviews, credentials.

The structures of objects do no I/O and depend on no clock, so they are safe on the hot path and easy to test.
"""
