"""
Running a handler once: the call of its function, its errors and retries, its progress, and its logger.

Nothing here knows why a handler is run, or from where its object comes.
"""
