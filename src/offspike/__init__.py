"""offspike: trained neural networks as spiking networks that answer the same, in as few time-steps as possible."""

from offspike import corrections, equations, exchange, initial, methods, neurons, ops, thresholds, zoo
from offspike.activations import QCFS, ClippedReLU
from offspike.activations import Rectifier as ReLU
from offspike.checkpoint import load, save
from offspike.convert import convert
from offspike.energy import CostModel, energy
from offspike.evaluate import evaluate
from offspike.exchange.freeze import freeze
from offspike.exchange.nir import from_nir, to_nir
from offspike.exchange.onnx import to_onnx
from offspike.exchange.spikingjelly import to_spikingjelly
from offspike.exits import early_exit
from offspike.fixed.certificate import Certificate
from offspike.fixed.certify import certify, verify
from offspike.fixed.snap import snap
from offspike.fixed.tune import tune
from offspike.folding import fold
from offspike.latency import cost
from offspike.methods import Method
from offspike.network import SpikingNetwork
from offspike.pool_errors import pool_errors
from offspike.prepare import init_thresholds, prepare
from offspike.record import record
from offspike.report import Report
from offspike.surgery import audit

__version__ = "0.1.0"

__all__ = [
    "QCFS",
    "Certificate",
    "ClippedReLU",
    "CostModel",
    "Method",
    "ReLU",
    "Report",
    "SpikingNetwork",
    "audit",
    "certify",
    "convert",
    "corrections",
    "cost",
    "early_exit",
    "energy",
    "equations",
    "evaluate",
    "exchange",
    "fold",
    "freeze",
    "from_nir",
    "init_thresholds",
    "initial",
    "load",
    "methods",
    "neurons",
    "ops",
    "pool_errors",
    "prepare",
    "record",
    "save",
    "snap",
    "thresholds",
    "to_nir",
    "to_onnx",
    "to_spikingjelly",
    "tune",
    "verify",
    "zoo",
]
