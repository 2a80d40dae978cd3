"""The actions, by their names in URLs. Each has a module; see ``flow``."""

from yamlsched.web.actions import cancel, pause, retry

ACTIONS = {action.name: action for action in (retry.ACTION, cancel.ACTION, pause.PAUSE, pause.RESUME)}
