"""The probe: collect the facts of a node (node/facts.py) and print them as one JSON object. Needs neither root nor installed packages."""
