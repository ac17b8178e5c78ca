"""Counts the raw watch events of several kinds, of one object each."""

from common import RESOURCE, report

import kopf

plurals = set(RESOURCE[2].split(","))


async def event(resource, **_):
    plurals.discard(resource.plural)
    if not plurals:
        report("seen")


for plural in sorted(plurals):
    kopf.on.event(*RESOURCE[:2], plural)(event)
