"""
Codes of messages: short names, by which messages that ask for an action are found in the documentation.

A message cannot be searched for as a whole, because it contains names and numbers. So its log line ends with a code in
brackets, and a line of JSON has it as a field. The page "Messages" has an anchor for each code. Only formatters add
codes: the messages themselves, and so the Events, stay as they are. Messages of upstream kopf have no codes.
"""

import logging
import os
import pathlib

from kopf._cogs.helpers.explanations import ExplainedError

PACKAGE = str(pathlib.Path(__file__).parents[2]) + os.sep
"""The folder of the framework's code: records from it are the framework's own messages."""

CODES = {
    "%s calls kopf.run() or kopf.operator() while": 'run-while-imported',
    "%s has failed %d times and is called again": 'retries-without-pause',
    "%s has returned %r, which has no effect": 'result-without-effect',
    "%s removes status.%s, which": 'status-removed',
    "%s of %s is contested by": 'child-contested',
    "%s %s the event loop for": 'event-loop-blocked',
    "A permission of the operator is missing": 'permission-missing',
    "A webhook of this operator refuses": 'webhook-refuses-own-patch',
    "All objects share the memo": 'memo-shared',
    "All the %d threads of sync daemons": 'daemon-threads-used-up',
    "Conditions of %s (%r) are not kept": 'conditions-dropped',
    "Events about objects are lost in": 'events-forbidden',
    "Ignoring the broken state of handling": 'progress-broken',
    "It is not known whether the API server converts": 'conversion-unchecked',
    "Not permitted to list or watch": 'watch-forbidden',
    "Resources that appear, change, or vanish": 'discovery-forbidden',
    "The API server cannot convert": 'conversion-unregistered',
    "The changed certificates of the webhook server": 'certificates-unusable',
    "The handlers of {%s} do not have the same label_selector=": 'selectors-differ',
    "The holder %r of the Lease": 'lease-held-longer',
    "The last-handled configuration of": 'last-state-too-large',
    "The Lease %s is not that of a kopf operator": 'lease-foreign',
    "The Lease %s is not used": 'lease-unused',
    "The Lease cannot be watched": 'lease-forbidden',
    "The objects of %s are not handled: spec": 'conversion-missing',
    "The patterns of namespaces match nothing, and": 'namespaces-forbidden',
    "The patterns of namespaces match nothing, as": 'namespaces-unscanned',
    "The peering %s is not accessible": 'peering-forbidden',
    "The settings %r in %s have no effect": 'settings-without-effect',
    "The validation rules of custom resources": 'rules-unchecked',
    "There are no handlers%s": 'no-handlers',
    "Traces cannot be exported": 'traces-dropped',
}
"""The codes by the beginnings of the messages, before their values are inserted."""


def find_code(record: logging.LogRecord) -> str | None:
    """Return the code of a message of the framework; ``None`` if it has none. Formatters call it for each line."""
    if record.levelno < logging.WARNING or not record.pathname.startswith(PACKAGE):
        return None
    if isinstance(code := getattr(record, 'message_code', None), str):
        return code
    template = str(record.msg)
    return next((code for beginning, code in CODES.items() if template.startswith(beginning)), None)


def name_code(error: type[ExplainedError]) -> str:
    """Return the code of all errors of a type, such as ``load-error`` for `LoadError`."""
    return ''.join(f'-{letter.lower()}' if letter.isupper() else letter for letter in error.__name__).strip('-')
