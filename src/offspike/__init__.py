"""offspike: trained neural networks as spiking networks that answer the same, in as few time-steps as possible."""

from offspike import equations, initial, methods, ops, zoo
from offspike.activations import QCFS, ClippedReLU
from offspike.checkpoint import load, save
from offspike.convert import convert
from offspike.evaluate import evaluate
from offspike.latency import cost
from offspike.methods import Method
from offspike.network import SpikingNetwork
from offspike.prepare import init_thresholds, prepare
from offspike.record import record
from offspike.report import Report
from offspike.surgery import audit

__version__ = "0.1.0"

__all__ = [
    "QCFS",
    "ClippedReLU",
    "Method",
    "Report",
    "SpikingNetwork",
    "audit",
    "convert",
    "cost",
    "equations",
    "evaluate",
    "init_thresholds",
    "initial",
    "load",
    "methods",
    "ops",
    "prepare",
    "record",
    "save",
    "zoo",
]
