"""Holds `distributed`; it is imported by whoever wants it (TG1 utils/data)."""
