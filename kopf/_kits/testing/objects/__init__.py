"""The verbs on single objects, their metadata and defaults, admission, and the rules of built-in kinds."""
