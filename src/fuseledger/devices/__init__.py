"""GPUs as data: `Device`, its figures with their sources, and the catalog.

device = load("h100-sxm")
device.stream_gbs            # what DRAM bytes are priced at
device.figures.l2_bytes      # a figure with its source
"""

from fuseledger.devices.catalog import load, names, replace_figures
from fuseledger.devices.device import Device, LaunchMode, Pipe
from fuseledger.devices.figure import Count, Figure, Figures

__all__ = [
    "Count",
    "Device",
    "Figure",
    "Figures",
    "LaunchMode",
    "Pipe",
    "load",
    "names",
    "replace_figures",
]
