"""Makes Dask clients, and nothing else."""
