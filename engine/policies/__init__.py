"""Who goes first when a pool is full."""

from engine.policies.base import EvictionPolicy, Victim
from engine.policies.lru import LruPolicy

__all__ = ["EvictionPolicy", "LruPolicy", "Victim"]
