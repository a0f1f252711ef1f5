"""A finished exchange as a `Fit`: its parts, how it is completed, checked, stored and updated."""
