"""Validation of objects: structural schemas, types of built-in kinds, rules in CEL."""
