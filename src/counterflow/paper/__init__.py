"""The paper's training: penalty, augmented Lagrangian, hybrid schedule, and FedGC."""
