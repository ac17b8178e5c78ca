"""What an operator needs to be developed and deployed: its permissions, its manifests, the files of a new project."""
