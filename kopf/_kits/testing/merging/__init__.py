"""Partial changes of objects: patches of all types, server-side apply, managed fields."""
