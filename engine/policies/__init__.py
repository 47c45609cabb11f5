"""Who goes first when a pool is full."""

from engine.policies.arc import ArcPolicy
from engine.policies.base import EvictionPolicy
from engine.policies.lru import LruPolicy

__all__ = ["ArcPolicy", "EvictionPolicy", "LruPolicy"]
