"""CRDs and the conversion between their versions."""
