"""Spiking networks for other people's simulators."""
