"""The memory that a training needs on a device, before it starts."""
