"""What runs beside the handling of changes: daemons, timers, indices, admission, peering, posting, probes, activities.

Each engine owns its own tasks and state and is driven by the reactor; engines do not drive each other.
"""
