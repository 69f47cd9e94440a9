"""From a device's name to what is known about it."""

from __future__ import annotations

from octavo.util.lazy import resolve
from octavo.words.device_caps import DeviceCaps
from octavo.words.errors import UnsupportedError

DETECTORS: dict[str, str] = {
    "cpu": "octavo.device.platform.cpu:detect_cpu",
}


def detect_caps(device: str = "auto") -> DeviceCaps:
    """Facts about ``device``; "auto" is the best one here. Loads no torch.

    Raises UnsupportedError for an unknown one.
    """
    name = "cpu" if device == "auto" else device
    if name not in DETECTORS:
        raise UnsupportedError(f"no device {device!r}; there is {', '.join(DETECTORS)}")
    caps: DeviceCaps = resolve(DETECTORS[name])()
    return caps
