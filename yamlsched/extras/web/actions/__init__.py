"""The actions, by their names in URLs. Each has a module; see ``flow``."""

from yamlsched.extras.web.actions import backfill, enqueue, many, pause, pause_tag, retry, settle

ACTIONS = {
    action.name: action
    for action in (
        retry.ACTION,
        many.RETRY,
        retry.CANCEL,
        many.CANCEL,
        pause.PAUSE,
        pause.RESUME,
        pause_tag.PAUSE,
        pause_tag.RESUME,
        settle.ACTION,
        enqueue.ACTION,
        backfill.ACTION,
    )
}
