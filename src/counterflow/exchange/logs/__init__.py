"""Units with logs and no models: a few numbers a row, the system identified at the server."""
