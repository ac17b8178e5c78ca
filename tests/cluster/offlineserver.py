"""A webhook server for operators in the loop of a test, which asks it for reviews without a network."""

import asyncio


class OfflineServer:
    """A webhook server without a network: the test calls it as the API would."""

    def __init__(self):
        self.configs = asyncio.Queue()
        self.configs.put_nowait({'url': 'https://localhost:1/root', 'caBundle': 'Q0E='})
        self.fn = None
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.ending = None

    async def __call__(self, fn):
        self.fn = fn
        self.started.set()
        try:
            while (config := await self.configs.get()) is not None:
                yield config
        finally:
            if self.ending is not None:
                await self.ending()
            self.ended.set()

    async def review(self, operation='CREATE', *, webhook=None, metadata=None, resource='kopfexamples'):
        obj = {'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', 'metadata': metadata or {'name': 'obj'}, 'spec': {}}
        answer = await self.fn(
            {
                'apiVersion': 'admission.k8s.io/v1',
                'kind': 'AdmissionReview',
                'request': {
                    'uid': 'uid1',
                    'operation': operation,
                    'userInfo': {},
                    'namespace': obj['metadata'].get('namespace', ''),
                    'object': None if operation == 'DELETE' else obj,
                    'oldObject': None if operation == 'CREATE' else obj,
                    'resource': {'group': 'kopf.dev', 'version': 'v1', 'resource': resource},
                },
            },
            webhook=webhook,
        )
        return answer['response']
