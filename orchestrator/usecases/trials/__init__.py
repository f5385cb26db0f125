"""Short runs that measure or prove something."""
