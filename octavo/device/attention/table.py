"""Attention backends by name, best first where several fit: name -> "module:Class"."""

from __future__ import annotations

BACKENDS: dict[str, str] = {
    "cpu": "octavo.device.attention.cpu:CpuAttention",
    "reference": "octavo.device.attention.reference:ReferenceAttention",
}
