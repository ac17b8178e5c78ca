"""What is remembered and how it is seen: the store, lists, watches, selectors, snapshots, the file with the state."""
