"""`mabert demo`: the tour."""
