"""What objects may look like: structural schemas, types of built-in kinds, rules in CEL."""
