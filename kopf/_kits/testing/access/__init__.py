"""Who asks, and what they may do: users, permissions, roles, and the questions about them."""
