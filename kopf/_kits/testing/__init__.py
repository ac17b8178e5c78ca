"""
The sandbox: an embedded Kubernetes API, for first steps with operators and for their tests, without a cluster.

It is built in floors, and each imports only from those below it; ``.importlinter`` proves that. From the top:

- ``plugin`` (pytest's fixtures), ``operators`` and ``launching`` (operators and sandboxes as processes), ``sandbox``
  (what users call), ``instances`` (one running sandbox);
- ``serving``: HTTP, routes, discovery, the audit log, and faults on request;
- ``controllers``: what happens by itself, as in kube-controller-manager;
- ``objects``: the verbs on single objects, and the rules of built-in kinds;
- ``resources``: CRDs, and the conversions between their versions;
- ``storing`` (lists, watches, selectors), ``access`` (users, roles), ``schemas`` (validation), ``patching`` (patches,
  server-side apply, managed fields);
- ``kinds``: which kinds there are, what their fields mean, how they are stored and shown;
- ``wire``: bytes and texts: the HTTP server, JSON, YAML, protobuf, names, quantities, statuses;
- ``data``: what was recorded of real control planes.

Everything is imported on demand: a test suite that does not use the sandbox does not pay for it.
"""
