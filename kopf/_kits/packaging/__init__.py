"""Tools for developing and deploying operators: permissions, manifests, the files of new projects."""
