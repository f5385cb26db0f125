"""Holds `parallel`, which users import themselves (TG1 nn/__init__.py)."""
