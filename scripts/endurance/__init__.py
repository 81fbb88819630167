"""What scripts/soak is made of."""
