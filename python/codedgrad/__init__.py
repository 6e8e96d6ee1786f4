"""Gradient coding: data-parallel training at the speed of the fast workers, exactly."""

from __future__ import annotations

from ._native import __version__ as __version__
