"""Running what the user gave: one handler, once, with its errors, its retries, its progress and its logger.

Nothing here knows why a handler runs or how the news of a change came in.
"""
