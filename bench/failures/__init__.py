"""Provoke failures in real runs on this machine, and compare their diagnoses with the causes."""
