"""The program ``maxslices``, or ``python -m maxslices``."""

import signal
import sys

from . import without_extra
from .errors import MissingPackageError


def main() -> int:
    """Run the command line. Ctrl-C ends the program silently while modules are imported.

    Otherwise Python would print a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from .cli.main import main

        return main()
    except ModuleNotFoundError as error:
        missing = without_extra("the command line", error)
        if missing is error:
            raise
        print(f"maxslices: error: {missing}", file=sys.stderr)
        return MissingPackageError.exit_code


if __name__ == "__main__":
    sys.exit(main())
