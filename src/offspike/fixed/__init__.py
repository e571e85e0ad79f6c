"""Fixed point: networks of small whole numbers, and the proof that they equal their spiking networks bit for bit."""

from offspike.fixed.certify import certify, verify
from offspike.fixed.snap import snap
from offspike.fixed.tune import tune

__all__ = ["certify", "snap", "tune", "verify"]
