"""The life of one object: its verbs, its metadata, its defaults, and what may not be changed."""
