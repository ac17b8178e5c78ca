"""
Codes of messages: short names, by which messages that ask for an action are found in the documentation.

A message cannot be searched for as a whole, because it contains names and numbers. So its log line ends with a code in
brackets, and a line of JSON has it as a field. The page "Messages" has an anchor for each code. Only formatters add
codes: the messages themselves, and so the Events, stay as they are. Messages of upstream kopf have no codes.
"""

import logging
import os
import pathlib

from kopf._cogs.helpers.explanations import ExplainedError, find_hint

PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep
"""The folder of the framework's code: records from it are the framework's own messages."""

CODES = {
    "%s %s the event loop for": 'event-loop-blocked',
    "%s calls kopf.run() or kopf.operator() while": 'run-while-imported',
    "%s cannot be stored, and is left out": 'value-unstorable',
    "%s changes the object by its own patch": 'changes-repeated',
    "%s has changed its patch, which has no effect: indexing": 'index-patch-ignored',
    "%s has failed %d times and is called again": 'retries-without-pause',
    "%s has returned %r, which has no effect": 'result-without-effect',
    "%s is called again because a storage": 'storage-counts-itself',
    "%s is called again because the object has other changes": 'mutations-repeated',
    "%s is run again and again because of": 'runs-repeated',
    "%s of %s is contested by": 'child-contested',
    "%s of raw events changes the object": 'events-repeated',
    "%s removes status.%s, which": 'status-removed',
    "%s still runs, and the operator does not wait": 'daemon-left',
    "%s still runs, though it was told to stop": 'daemon-unstopped',
    "A permission of the operator is missing": 'permission-missing',
    "A webhook of this operator refuses": 'webhook-refuses-own-patch',
    "All objects share the memo": 'memo-shared',
    "All the %d threads of sync daemons": 'daemon-threads-used-up',
    "Another process has replaced the address": 'webhook-replaced',
    "Conditions of %s (%r) are not kept": 'conditions-dropped',
    "conditions=True of %s has no effect on": 'conditions-not-owned',
    "Events about objects are lost in": 'events-forbidden',
    "Former children are not pruned": 'pruning-forbidden',
    "Ignoring the broken state of handling": 'progress-broken',
    "Impersonation is not supported": 'impersonation-ignored',
    "It is not known whether the API server converts": 'conversion-unchecked',
    "No API answers at": 'api-silent',
    "No operator has a live record": 'peering-unused',
    "None of the files in $KUBECONFIG": 'kubeconfig-missing',
    "Not permitted to list or watch": 'watch-forbidden',
    "Objects of %s cannot be converted: it is": 'conversion-without-crd',
    "patch.fns has %r, which is left out": 'patch-function-wrong',
    "Resources that appear, change, or vanish": 'discovery-forbidden',
    "The API has dropped the conditions": 'conditions-lost',
    "The API refuses the credentials of": 'credentials-refused',
    "The API server cannot convert": 'conversion-unregistered',
    "The changed certificates of the webhook server": 'certificates-unusable',
    "The cluster has no peering objects": 'peering-unserved',
    "The conversion strategy of %s has been changed": 'conversion-replaced',
    "The finalizer %r has come back": 'finalizer-shared',
    "The finalizer %r of a former version": 'finalizer-forbidden',
    "The handlers of {%s} do not have the same label_selector=": 'selectors-differ',
    "The holder %r of the Lease": 'lease-held-longer',
    "The instrument %r has failed": 'instrument-failed',
    "The last-handled configuration of": 'last-state-too-large',
    "The Lease %s is not that of a kopf operator": 'lease-foreign',
    "The Lease %s is not used": 'lease-unused',
    "The Lease cannot be watched": 'lease-forbidden',
    "The Leases of ended members stay": 'leases-kept',
    "The login has failed. It is tried again": 'login-failing',
    "The objects of %s are not handled: spec": 'conversion-missing',
    "The patch has %r, which is a field": 'patch-misplaced',
    "The patterns of namespaces match nothing, and": 'namespaces-forbidden',
    "The patterns of namespaces match nothing, as": 'namespaces-unscanned',
    "The peering %s is not accessible": 'peering-forbidden',
    "The peering %s is not found.": 'peering-unknown',
    "The peering %s is not found;": 'peering-missing',
    "The settings %r in %s have no effect": 'settings-without-effect',
    "The status is lost: the API has no status endpoint": 'status-lost',
    "The validation rules of custom resources": 'rules-unchecked',
    "There are no handlers%s": 'no-handlers',
    "There is no namespace to serve": 'peering-nowhere',
    "Traces cannot be exported": 'traces-dropped',
}
"""The codes by the beginnings of the messages, before their values are inserted."""

COMPOSED = {
    'changed-in-place': "A handler has changed the object itself instead of its patch. The change is undone.",
    'declaration-doubtful': "An option of a decorator matches nothing, or a statement of a handler does nothing.",
    'field-not-in-schema': "A handler or a filter names a field that the schema of the kind does not have.",
    'fields-dropped': "The API has dropped fields of a patch, as the schema of the kind does not have them.",
    'function-failed': "A filter, or the function of a delay or of a patch, has failed.",
    'handler-mistake': "A handler has failed because of a mistake in its code.",
    'handlers-of-one-id': "Two handlers are declared with the same id, so that only one of them is called.",
    'shards-lease-foreign': "The Lease of the shards belongs to another program.",
    'member-untrue': "The Lease of a member of the shards says what cannot be.",
    'metrics-unexposed': "Metrics of the program are not exposed, as they clash with others or their collector fails.",
    'patch-refused': "The API server refuses the patch of an object.",
    'progress-shared': "The ids of two handlers are so similar that they store their progress in the same annotation.",
    'shards-differ': "The members of the shards have different settings.",
    'storage-not-in-schema': "The schema of a kind drops the fields in which the framework stores its state.",
    'webhook-result-ignored': "A handler of webhooks has returned or patched something, which has no effect.",
}
"""What the messages are about that have no beginning in common, by their codes. These are given with the record."""


def find_code(record: logging.LogRecord) -> str | None:
    """Return the code of a message of the framework; ``None`` if it has none. Formatters call it for each line."""
    if record.levelno < logging.WARNING or not record.pathname.startswith(PACKAGE):
        return None
    if isinstance(code := getattr(record, 'message_code', None), str):
        return code
    template = str(record.msg)
    return next((code for beginning, code in CODES.items() if template.startswith(beginning)), None)


def find_error_code(error: BaseException) -> str | None:
    """Return the code of an error in a handler, if its text was written by the framework; otherwise, ``None``."""
    if isinstance(code := getattr(error, 'message_code', None), str):
        return code
    # Why not a KeyError? Those of specs and of indices have only the key that is missing.
    is_mistake = isinstance(error, TypeError | ValueError | AttributeError) or type(error) is LookupError
    return 'handler-mistake' if find_hint(error) or (is_mistake and _is_raised_here(error)) else None


def _is_raised_here(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE)


def name_code(error: type[ExplainedError]) -> str:
    """Return the code of all errors of a type, such as ``load-error`` for `LoadError`."""
    return ''.join(f'-{letter.lower()}' if letter.isupper() else letter for letter in error.__name__).strip('-')
