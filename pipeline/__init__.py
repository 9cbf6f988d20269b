"""Numbers only: arrays in, small records out; no files, no clock, no cluster."""
