"""The folder that the agent puts on PYTHONPATH; it holds nothing but what `import sitecustomize` is to find."""
