"""One exception class per mistake; every message is one line that names the place and the remedy.

Exit codes follow the class: `InputError` and its children are the user's to mend (exit 2),
`MissingExtra` asks for an installation (exit 3).
"""


class FuseledgerError(Exception):
    """Root of all errors that the command line turns into one line on stderr."""

    exit_code = 2


class InputError(FuseledgerError):
    """The input or the command is wrong."""


class SourceError(InputError):
    """A SOURCE (expression, file, module) cannot be read; the message names it."""


class ShapeError(InputError):
    """Shapes of an op do not agree; the message names the op and both shapes."""


class DeviceError(InputError):
    """A device is unknown, or a device file breaks the schema; the message names the field."""


class DecisionError(InputError):
    """A decision file breaks its schema; the message names the field."""


class CutError(InputError):
    """A cut does not cover the chain, or the graph is no chain."""


class KernelError(InputError):
    """A plan has no kernel of that number; the message says which it has."""


class OutputError(InputError):
    """The file named by `-o` cannot be written; the message names it."""


class CannotEmit(InputError):
    """A kernel has no Triton text yet; the message says what in it has none."""


class IllegalPlan(FuseledgerError):
    """A plan that is no partition into convex kernels: a defect of ours, never the user's."""

    exit_code = 1


class InvalidGraph(FuseledgerError):
    """A Graph breaks a rule of the IR: a defect of the frontend or pass that made it."""

    exit_code = 1


class MissingExtra(FuseledgerError):
    """A command needs a package that the base install leaves out."""

    exit_code = 3

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f'{package} is needed here: pip install "fuseledger[{extra}]"')
