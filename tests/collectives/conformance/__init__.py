"""One suite for every collective, transport, store and size: what is right is said once, in NumPy."""
