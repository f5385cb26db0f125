"""Holds `parallel`, which is imported by whoever wants it (TG1 nn/__init__.py)."""
