"""Holds `distributed`, which users import themselves (TG1 utils/data)."""
