"""How objects are changed in parts: patches of all types, server-side apply, managed fields."""
