"""The default method: one sufficient message from each unit, maximum likelihood at the server."""
