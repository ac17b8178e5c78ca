"""CRDs made from classes, and compared with their former versions."""
