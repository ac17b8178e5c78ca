"""
The sandbox: an embedded Kubernetes API, so that nobody needs a cluster to start with an operator or to test one.

The parts, from the outside to the inside: `sandbox` (the door for users), `server` (HTTP, TLS, users, faults), `api`
(verbs), `rest`, `listing`, `watching` (their rules), `kinds`, `crds`, `schemas` (what is served), `storage`.
Everything is imported on demand: a test suite that does not use the sandbox does not pay for it.
"""
