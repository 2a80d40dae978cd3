"""yamlsched and its peers, measured on one PostgreSQL in one run: ``python -m benchmarks``. Method: README.md."""
