"""How couplings are learned: one folder a method, each with its options, its unit's side and its server's side."""
