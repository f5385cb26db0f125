"""Facts about runs and nodes that are kept so that they need not be read or queried again; each entry can be removed."""
