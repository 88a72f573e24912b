"""``maxslices``, and ``python -m maxslices``: the program."""

import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C while Python still imports it ends the program without a word.

    Python would raise in the middle of an import, and print a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
