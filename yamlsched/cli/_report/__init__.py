"""How ``yamlsched report`` is written: its parts in words, which text, Markdown and HTML each lay out."""
