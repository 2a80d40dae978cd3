"""Example handlers. Each is a plain function that schedules.yaml names; docs/handlers.md explains them."""
