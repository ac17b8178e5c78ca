"""
The framework itself: from events in the cluster to the user's handlers and back.

The packages are layered: the reactor starts and feeds the engines, both act on the declared intents, by the means
of the actions. Nothing here is public: what users may import is in the package's root.
"""
