"""Entry point of ``yamlsched`` and ``python -m yamlsched``."""

from yamlsched.cli import main

if __name__ == "__main__":
    main()
