"""
What can be configured in an operator: its settings, and where the state of handling is stored.

The state of handling lives in the objects themselves by default, in formats that other operators on this framework
can read: so, the operator can be restarted, moved, up- or downgraded at any moment. The storages are replaceable.
"""
