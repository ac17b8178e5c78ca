"""
The sandbox: an embedded Kubernetes API, for first steps with operators and for their tests, without a cluster.

It consists of layers; each of them imports only from lower layers, which ``.importlinter`` proves. From the top:

- ``operators`` (operators in processes), ``launching`` (the sandbox as a command),
  ``sandbox`` (the public classes), ``instances`` (one running sandbox);
- ``serving``: HTTP, routes, discovery, the audit log, and faults on request;
- ``controllers``: the background work of kube-controller-manager;
- ``objects``: the verbs on single objects, and the rules of built-in kinds;
- ``resources``: CRDs, and the conversions between their versions;
- ``storing`` (lists, watches, selectors), ``access`` (users, roles), ``schemas`` (validation), ``patching`` (patches,
  server-side apply, managed fields);
- ``kinds``: the kinds with their fields, their storage, and their tables;
- ``wire``: bytes and texts: the HTTP server, JSON, YAML, protobuf, names, quantities, statuses;
- ``data``: recordings of real control planes.

Everything is imported on demand, so that a test suite without the sandbox does not pay for its imports.
"""
