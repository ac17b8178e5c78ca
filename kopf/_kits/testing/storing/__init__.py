"""Storing and reading: lists, watches, selectors, forms of output, calls of webhooks, the file with the state."""
