"""Entry point of ``yamlsched`` and ``python -m yamlsched``."""

import atexit
import gc
import os
import signal
from typing import NoReturn

# until a verb starts: imports leave no garbage, and looking for it took a tenth of an idle tick's
# time
gc.disable()
atexit.register(gc.freeze)  # an interpreter that ends would look through everything once more


try:
    from yamlsched.cli import main as run
except KeyboardInterrupt:
    os.write(2, b"Aborted.\n")
    os._exit(130)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is left takes milliseconds


if __name__ == "__main__":
    main()
