"""
Helpers of plain Python: loading of modules, versions, host names, JSON, clocks.

They depend on neither Kubernetes nor asyncio, so that every other package may import them.
"""
