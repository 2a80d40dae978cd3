"""What operators ask and do: see, decide, act. Nothing here prints; the verbs of ``cli`` do."""
