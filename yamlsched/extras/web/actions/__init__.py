"""The actions, by their names in URLs. Each has a module; see ``flow``."""

from yamlsched.extras.web.actions import backfill, bulk, cancel, enqueue, pause, retry, settle, tagged

ACTIONS = {
    action.name: action
    for action in (
        retry.ACTION,
        bulk.RETRY,
        cancel.ACTION,
        bulk.CANCEL,
        pause.PAUSE,
        pause.RESUME,
        tagged.PAUSE,
        tagged.RESUME,
        settle.ACTION,
        enqueue.ACTION,
        backfill.ACTION,
    )
}
