"""
The parts of an operator beside the watching of resources: daemons, indices, webhooks, peering, events, probes.

Each engine owns its tasks and its state. The reactor drives the engines; engines do not drive each other.
"""
