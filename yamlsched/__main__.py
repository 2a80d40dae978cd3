"""Entry point of ``yamlsched`` and ``python -m yamlsched``."""

import atexit
import gc
import os
import signal
import sys
from typing import NoReturn

# until a verb starts: imports leave no garbage, and looking for it took a tenth of an idle tick's
# time
gc.disable()
atexit.register(gc.freeze)  # an interpreter that ends would look through everything once more


def main() -> NoReturn:
    """Run the command line, or the tick that finds nothing to do, and exit with its code."""
    try:
        from yamlsched.service import idle  # here, so that Ctrl-C is handled from now on

        if idle.finds_nothing(sys.argv[1:]):
            sys.exit(0)
        from yamlsched.cli import main as run  # an idle tick does without it, in half the time

        run()
    except KeyboardInterrupt:
        os.write(2, b"Aborted.\n")
        os._exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left takes milliseconds


if __name__ == "__main__":
    main()
