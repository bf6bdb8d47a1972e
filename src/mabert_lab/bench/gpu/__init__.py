"""What `make gpu` runs: the GPU tests, then measurements, as steps of a few minutes each."""
