"""
Data structures without behaviour of an operator: bodies and their views, diffs, patches, references, reviews.

Nothing here does I/O, sleeps or looks at the clock; so everything here is safe on the hot path and easy to test.
"""
