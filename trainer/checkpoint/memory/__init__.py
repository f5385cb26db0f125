"""States kept in the memory of the nodes, memory_steps=K."""
