"""
The configuration of an operator: its settings, and the storages of the state of handling.

By default, the state of handling is stored in the objects themselves, in formats that other versions of the framework
can read. So the operator can be restarted, moved, upgraded or downgraded at any moment. The storages are replaceable.
"""
