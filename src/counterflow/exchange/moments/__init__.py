"""Projections of the measurements on what all inputs did: a few numbers whatever the rows, and little noise on them."""
