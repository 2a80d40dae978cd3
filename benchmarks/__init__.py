"""yamlsched beside its peers, on one PostgreSQL, in one run: ``python -m benchmarks``. README.md tells the method."""
