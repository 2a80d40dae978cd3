"""Bills orders once a month."""
