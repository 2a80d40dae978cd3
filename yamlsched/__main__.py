"""Entry point of ``yamlsched`` and ``python -m yamlsched``."""

import atexit
import gc
import signal

gc.disable()  # until a verb starts: imports leave no garbage, and looking for it took a tenth of an idle tick's time
atexit.register(gc.freeze)  # an interpreter that ends would look through everything once more

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as behind & in a shell
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends the process without a traceback

from yamlsched.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
