"""The web page of `orch web`: a server on the loopback interface, which serves files of static/ and values as JSON."""
