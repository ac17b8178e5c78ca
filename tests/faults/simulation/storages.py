"""Storages of users: such as fail at times, and such as write at once to a database."""

import json

import kopf

MIGRATIONS = {
    'annotations': ['smart', 'both'],
    'smart': ['annotations'],
    'both': ['new'],  # not back: later, the outdated state of the new storage would count again
    'new': ['both'],
}
"""What may follow after what, so that the next operator finds the state of the previous one."""

NEW_PREFIX = 'new.dev'


class Flakiness:
    """Decides whether a storage fails now."""

    def __init__(self, rng, rate):
        self._rng, self.rate = rng, rate

    def strike(self):
        if self.rate and self._rng.random() < self.rate:
            raise RuntimeError('flaky storage')


class Flaky:
    """Makes the storage that comes after it in the bases fail at times."""

    def __init__(self, flakiness):
        super().__init__()
        self._flakiness = flakiness

    def fetch(self, **kwargs):
        self._flakiness.strike()
        return super().fetch(**kwargs)

    def store(self, **kwargs):
        self._flakiness.strike()
        return super().store(**kwargs)


class FlakyProgress(Flaky, kopf.AnnotationsProgressStorage):
    def purge(self, **kwargs):
        self._flakiness.strike()
        return super().purge(**kwargs)


class FlakyDiffBase(Flaky, kopf.AnnotationsDiffBaseStorage):
    def build(self, **kwargs):
        self._flakiness.strike()
        return super().build(**kwargs)


class DatabaseProgress(kopf.ProgressStorage):
    """A database: it is written at once, whatever becomes of the patch; but not by dead processes."""

    def __init__(self, records, process):
        self._records, self._process = records, process

    def fetch(self, *, key, body):
        return self._records.get((body.metadata.get('uid'), key))

    def store(self, *, key, record, body, patch):
        if not self._process.dead:
            self._records[body.metadata.get('uid'), key] = json.loads(json.dumps(record))

    def purge(self, *, key, body, patch):
        if not self._process.dead:
            self._records.pop((body.metadata.get('uid'), key), None)

    def touch(self, *, body, patch, value):
        pass

    def clear(self, *, essence):
        return essence


def configure(persistence, name, *, flakiness, records, process):
    """Put the storages of this name into the settings."""
    if name == 'status':
        persistence.progress_storage = kopf.StatusProgressStorage()
        persistence.diffbase_storage = kopf.StatusDiffBaseStorage()
    elif name == 'flaky':
        persistence.progress_storage = FlakyProgress(flakiness)
        persistence.diffbase_storage = FlakyDiffBase(flakiness)
    elif name == 'database':
        persistence.progress_storage = DatabaseProgress(records, process)
    elif name == 'smart':
        persistence.progress_storage = kopf.SmartProgressStorage()
        persistence.diffbase_storage = kopf.MultiDiffBaseStorage(
            [kopf.AnnotationsDiffBaseStorage(), kopf.StatusDiffBaseStorage(field='status.other')]
        )
    elif name == 'new':
        persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=NEW_PREFIX)
        persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=NEW_PREFIX)
    elif name == 'both':
        progress = [kopf.AnnotationsProgressStorage(prefix=NEW_PREFIX), kopf.AnnotationsProgressStorage()]
        base = [kopf.AnnotationsDiffBaseStorage(prefix=NEW_PREFIX), kopf.AnnotationsDiffBaseStorage()]
        persistence.progress_storage = kopf.MultiProgressStorage(progress)
        persistence.diffbase_storage = kopf.MultiDiffBaseStorage(base)


def find_progress(name, body, records):
    """Return what is left of the progress of an object."""
    uid, annotations = body['metadata']['uid'], body['metadata'].get('annotations') or {}
    if name == 'database':
        return [key for at, key in records if at == uid and not key.startswith('late')]
    if name == 'status':
        kept = (body.get('status') or {}).get('kopf') or {}
        return [key for key in kept.get('progress') or () if not key.startswith('late')]
    prefixes = {'both': ('kopf.zal', NEW_PREFIX), 'new': (NEW_PREFIX,)}.get(name, ('kopf.zal',))
    others = ('last-handled', 'kopf-managed', '/late', 'upgraded')
    return [key for key in annotations if key.startswith(prefixes) and not any(other in key for other in others)]


def find_handled(name, body):
    """Return the last-handled state of an object."""
    annotations, key = body['metadata'].get('annotations') or {}, 'last-handled-configuration'
    if name == 'status':
        return json.loads(((body.get('status') or {}).get('kopf') or {}).get(key) or 'null')
    new = annotations.get(f'{NEW_PREFIX}/{key}') if name in ('both', 'new') else None
    old = annotations.get(f'kopf.zalando.org/{key}') if name != 'new' else None
    return json.loads(new or old or 'null')
