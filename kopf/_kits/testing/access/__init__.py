"""Authentication and authorization: users, permissions, roles, and review requests."""
