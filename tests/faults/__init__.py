"""What goes wrong in real clusters, made to go wrong here."""
