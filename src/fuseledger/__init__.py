"""fuseledger: should these GPU operators be one kernel or several?"""

__version__ = "0.1.0"
