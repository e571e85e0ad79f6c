"""offspike: trained neural networks as spiking networks that answer the same, in as few time-steps as possible."""
