"""Check nodes, inventories and environments: nothing is launched."""
