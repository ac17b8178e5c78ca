"""Tools that make CRDs from classes, and compare CRDs with their former versions."""
