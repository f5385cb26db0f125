"""
The command line: a module for each verb, with its options and its output.

A verb's module imports at its top what takes milliseconds, and the rest where the verb runs: help and completion need the options only.
"""
