"""Entry point of ``yamlsched`` and ``python -m yamlsched``."""

import atexit
import gc
import os

# until a verb starts: imports leave no garbage, and looking for it took a tenth of an idle tick's
# time
gc.disable()
atexit.register(gc.freeze)  # an interpreter that ends would look through everything once more

try:
    from yamlsched.cli import main
except KeyboardInterrupt:
    os.write(2, b"Aborted.\n")
    os._exit(130)

if __name__ == "__main__":
    main()
