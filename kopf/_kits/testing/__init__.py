"""
The sandbox: an embedded Kubernetes API, so that nobody needs a cluster to start with an operator or to test one.

The doors for users are here (`sandbox`, `doors`, `plugin`, `launching`); the rooms behind them, from the outside to
the inside: `serving` (HTTP and the forms of things), `access` (who may), `resources` (what is served), `objects` and
`patching` (the rules of single objects), `schemas` (what they may look like), `storing` (what is remembered, lists,
watches), and `life` (what happens by itself).

Everything is imported on demand: a test suite that does not use the sandbox does not pay for it.
"""
