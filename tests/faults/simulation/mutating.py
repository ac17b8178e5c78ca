"""Mutating webhooks or policies: the API server stores something else than what clients have sent."""

from kopf._kits.testing.objects import objects

_prepare_changed = objects.prepare_changed


def take_over(mutating, ledger):
    """
    Let the API change what is written to the simulated objects.

    Args:
        mutating: ``values`` if numbers that handlers put into the spec become strings, as quantities are normalised;
            ``stamps`` if each change of the spec leaves an annotation; or nothing.
        ledger: where the numbers of the stamps come from.
    """

    def prepare_changed(body, old, kind, subresource):
        if kind.plural == 'kopfexamples' and not subresource:
            mutate(body, old)
        _prepare_changed(body, old, kind, subresource)

    def mutate(body, old):
        spec = body.get('spec') or {}
        if mutating == 'values':
            spec.update([(key, str(value)) for key, value in spec.items() if key.startswith('x_')])
        elif mutating == 'stamps' and spec != old.get('spec'):
            annotations = body['metadata'].get('annotations') or {}
            body['metadata']['annotations'] = {**annotations, 'stamp': str(ledger.number())}

    objects.prepare_changed = prepare_changed
