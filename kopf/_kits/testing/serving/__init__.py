"""The HTTP server, from requests to responses: routes, discovery, the audit log, and faults."""
