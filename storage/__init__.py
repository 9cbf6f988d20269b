"""Named arrays, bytes and the disk; knows no algorithm."""
