"""The folder that the agent puts on PYTHONPATH; it holds only the module for `import sitecustomize`."""
