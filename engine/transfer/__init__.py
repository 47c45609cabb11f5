"""Copies between the device's blocks and host slots, beside the engine step."""

from engine.transfer.base import Copier, CopyBatch, Finished

__all__ = ["Copier", "CopyBatch", "Finished"]
