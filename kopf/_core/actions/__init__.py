"""
Running a handler once: the call of its function, its errors and retries, its progress, and its logger.

These modules are independent of the reason for running a handler, and of the source of its object.
"""
