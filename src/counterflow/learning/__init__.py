"""The server's mathematics on arrays: likelihood, parameters, optimiser, information, uncertainty, influence."""
