"""The command line as ``python -m kopf``, for when the script ``kopf`` is not on the path."""

from kopf.cli import launch

if __name__ == '__main__':
    launch()
