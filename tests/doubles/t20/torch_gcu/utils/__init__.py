"""Holds `data`, as TG1 utils does."""

from . import data as data
