"""Callbacks of handlers with field= see the whole object, its old and new states, and only objects with the field."""
from conformance import crd

CRDS = [crd('fieldeds', 'Fielded')]
OPERATOR = '''
import kopf, journal

WHERE = ('__GROUP__', 'fieldeds')
seen = {}

def cut(essence):
    return None if essence is None else {key: essence[key] for key in essence if key == 'spec'}

def look(where, name, **kw):
    facts = {key: cut(kw[key]) for key in ('old', 'new') if key in kw}
    if kw.get('diff') is not None:
        facts['diff'] = sorted('.'.join(item[1]) for item in kw['diff'] if item[1][:1] != ('metadata',))
    seen[where, name] = facts
    return True

def when(where):
    # As operators do, it relies on the field being there.
    return lambda spec, **kw: len(spec['cluster']['snapshot']) > 0 and look(f'{where}.when', **kw)

def whole(where):
    return lambda old, new, **kw: len((new or old)['spec']['cluster']['snapshot']) > 0 and look(
        f'{where}.when', old=old, new=new, **kw)

def options(where, *names, when=when):
    return dict(
        id=where, field='spec.cluster.snapshot', when=when(where),
        labels={'l': lambda value, **kw: look(f'{where}.labels', **kw)},
        annotations={'a': lambda value, **kw: look(f'{where}.annotations', **kw)},
        **{option: lambda value, option=option, **kw: isinstance(value, str) and look(f'{where}.{option}', **kw)
           for option in names})

def note(where, kw, **facts):
    filters = {key.partition('.')[2]: value for (key, name), value in seen.items()
               if key.partition('.')[0] == where and name == kw['name']}
    journal.call(where, kw, filters=filters, **facts)

def changing(where):
    def fn(**kw):
        note(where, kw, reason=str(kw['reason']), old=kw['old'], new=kw['new'])
    return fn

def simple(where):
    noted = []
    def fn(**kw):
        # Only once for each change: how many patches of its own an operator sees is another matter.
        change = None if kw.get('diff') is None else sorted('.'.join(item[1]) for item in kw['diff'] if item[1][0] == 'spec')
        if change not in noted and change != []:
            noted.append(change)
            note(where, kw)
    return fn

kopf.on.create(*WHERE, **options('create', 'value'))(changing('create'))
kopf.on.create(*WHERE, **options('plain-create', when=whole))(changing('plain-create'))
kopf.on.update(*WHERE, **options('update', when=whole))(changing('update'))
kopf.on.update(*WHERE, **options('transition', 'old', 'new', when=whole))(changing('transition'))
kopf.on.field(*WHERE, **options('field', when=whole))(changing('field'))
kopf.on.resume(*WHERE, **options('resume'))(changing('resume'))
kopf.on.delete(*WHERE, **options('delete', when=whole))(changing('delete'))
kopf.on.event(*WHERE, **options('event'))(simple('event'))
kopf.timer(*WHERE, interval=1000, **options('timer'))(simple('timer'))
kopf.index(*WHERE, **options('index'))(simple('index'))
kopf.on.validate(*WHERE, operation='UPDATE', **options('validate'))(simple('validate'))
kopf.on.mutate(*WHERE, operation='UPDATE', **options('mutate'))(simple('mutate'))

@kopf.daemon(*WHERE, **options('daemon'))
async def daemon(stopped, **kw):
    note('daemon', kw)
    await stopped.wait()

@kopf.on.create(*WHERE, id='parent', field='spec.cluster')
def parent(**_):
    kopf.register(changing('sub'), id='sub', when=lambda **kw: look('sub.when', **kw))
    kopf.subhandler(id='part', field='snapshot', when=lambda **kw: look('part.when', **kw))(changing('part'))

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', port=int('__PORT__'), certfile='__CERT__', pkeyfile='__KEY__')
    settings.admission.managed = '__NS__.kopf.test'
'''
ORDER = 'set'
WRITES_SLACK = 100  # upstream rewrites the configurations at every change of any CRD


def drive(cluster):
    resource = 'fieldeds.v1.__GROUP__'
    configuration = f'{cluster.ns}.kopf.test'

    def start():
        cluster.operator.start(listing=('fieldeds',))
        cluster.wait_until(lambda: (
            cluster.get('validatingwebhookconfigurations', configuration) or {}).get('webhooks'))
        cluster.wait_until(lambda: (
            cluster.get('mutatingwebhookconfigurations', configuration) or {}).get('webhooks'))

    start()
    cluster.create(resource, 'empty', spec={'cluster': {'nodes': 1}})
    cluster.create(resource, 'full', spec={'cluster': {'nodes': 1, 'snapshot': 's1'}, 'other': 1})
    cluster.wait_note('create', name='full')
    cluster.wait_handled(resource, 'empty')
    cluster.settle()
    for name in ('empty', 'full'):
        cluster.patch(resource, name, {'spec': {'other': 2}})
    cluster.settle()
    cluster.patch(resource, 'full', {'spec': {'cluster': {'snapshot': 's2'}, 'other': 3}})
    cluster.wait_note('update', name='full')
    cluster.settle()
    cluster.operator.stop()
    start()
    cluster.wait_note('resume', name='full')
    cluster.settle()
    cluster.delete(resource, 'full')
    cluster.wait_gone(resource, 'full')
    cluster.settle(0.3)
    cluster.operator.stop()
