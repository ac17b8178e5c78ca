"""
Kubernetes operators in Python: handlers are declared by decorators, the framework runs them.

This is the public interface, together with `kopf.on`, `kopf.lifecycles` and `kopf.testing`. Everything else is an
implementation detail, and can change at any time.
"""

from typing import TYPE_CHECKING, Any

from kopf import on
from kopf._cogs.configs.configuration import OperatorSettings
from kopf._cogs.configs.diffbase import (
    AnnotationsDiffBaseStorage,
    DiffBaseStorage,
    MultiDiffBaseStorage,
    StatusDiffBaseStorage,
)
from kopf._cogs.configs.progress import (
    AnnotationsProgressStorage,
    MultiProgressStorage,
    ProgressRecord,
    ProgressStorage,
    SmartProgressStorage,
    StatusProgressStorage,
)
from kopf._cogs.helpers.versions import version as __version__
from kopf._cogs.structs.bodies import (
    Annotations,
    Body,
    BodyEssence,
    Labels,
    Meta,
    ObjectReference,
    OwnerReference,
    RawBody,
    RawEvent,
    RawEventType,
    Spec,
    Status,
    build_object_reference,
    build_owner_reference,
)
from kopf._cogs.structs.credentials import AiohttpSession, ConnectionInfo, LoginError
from kopf._cogs.structs.dicts import FieldPath, FieldSpec
from kopf._cogs.structs.diffs import Diff, DiffItem, DiffOperation
from kopf._cogs.structs.ephemera import Index, Memo, Store
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.instruments import Instrument
from kopf._cogs.structs.patches import Patch, PatchFn
from kopf._cogs.structs.references import EVERYTHING, Resource
from kopf._cogs.structs.reviews import (
    Headers,
    Operation,
    SSLPeer,
    UserInfo,
    WebhookClientConfig,
    WebhookClientConfigService,
    WebhookFn,
    WebhookServerProtocol,
)
from kopf._core.actions import lifecycles
from kopf._core.actions.execution import (
    ErrorsMode,
    HandlerRetriesError,
    HandlerTimeoutError,
    Logger,
    NotReadyError,
    PermanentError,
    TemporaryError,
)
from kopf._core.actions.lifecycles import get_default_lifecycle, set_default_lifecycle
from kopf._core.actions.loggers import LocalObjectLogger, LogFormat, ObjectLogger, configure
from kopf._core.engines.changing import execute
from kopf._core.engines.posting import event, exception, info, warn
from kopf._core.engines.stoppers import (
    AsyncDaemonStopperChecker,
    AsyncDeletionFlag,
    DaemonStopped,
    DaemonStoppingReason,
    DeletionFlag,
    SyncDaemonStopperChecker,
    SyncDeletionFlag,
)
from kopf._core.intents.callbacks import ABSENT, PRESENT, all_, any_, none_, not_
from kopf._core.intents.causes import Reason
from kopf._core.intents.registries import OperatorRegistry, get_default_registry, set_default_registry
from kopf.on import daemon, index, register, subhandler, timer

if TYPE_CHECKING:
    from kopf._cogs.clients.logins import (
        login_via_async_client,
        login_via_client,
        login_via_pykube,
        login_with_kubeconfig,
        login_with_service_account,
    )
    from kopf._cogs.clients.serverside import ApplyConflictError, ApplyInvalidError, ApplyUnsupportedError
    from kopf._cogs.structs.conditions import Condition, Conditions
    from kopf._cogs.structs.model_adapters import ModelError
    from kopf._core.engines.admission import AdmissionError
    from kopf._core.engines.children import AsyncChildren, SyncChildren
    from kopf._core.engines.planning import Again
    from kopf._core.intents.declared_kinds import InvalidObjectError, kind
    from kopf._core.reactor.running import operator, run, run_tasks, spawn_tasks
    from kopf._kits.hierarchies import (
        adjust_namespace,
        adopt,
        append_owner_reference,
        harmonize_naming,
        label,
        remove_owner_reference,
    )
    from kopf._kits.provisioning import ensure_crds
    from kopf._kits.services import WebhookService
    from kopf._kits.tunnels import WebhookAutoServer, WebhookAutoTunnel, WebhookNgrokTunnel
    from kopf._kits.webhooks import (
        WebhookDockerDesktopServer,
        WebhookK3dServer,
        WebhookMinikubeServer,
        WebhookServer,
    )
    from kopf._kits.writes import apply, seen

__all__ = [
    'ABSENT',
    'EVERYTHING',
    'PRESENT',
    'AdmissionError',
    'Again',
    'AiohttpSession',
    'Annotations',
    'AnnotationsDiffBaseStorage',
    'AnnotationsProgressStorage',
    'ApplyConflictError',
    'ApplyInvalidError',
    'ApplyUnsupportedError',
    'AsyncChildren',
    'AsyncDaemonStopperChecker',
    'AsyncDeletionFlag',
    'Body',
    'BodyEssence',
    'Condition',
    'Conditions',
    'ConnectionInfo',
    'DaemonStopped',
    'DaemonStoppingReason',
    'DeletionFlag',
    'Diff',
    'DiffBaseStorage',
    'DiffItem',
    'DiffOperation',
    'ErrorsMode',
    'FieldPath',
    'FieldSpec',
    'HandlerId',
    'HandlerRetriesError',
    'HandlerTimeoutError',
    'Headers',
    'Index',
    'Instrument',
    'InvalidObjectError',
    'Labels',
    'LocalObjectLogger',
    'LogFormat',
    'Logger',
    'LoginError',
    'Memo',
    'Meta',
    'ModelError',
    'MultiDiffBaseStorage',
    'MultiProgressStorage',
    'NotReadyError',
    'ObjectLogger',
    'ObjectReference',
    'Operation',
    'OperatorRegistry',
    'OperatorSettings',
    'OwnerReference',
    'Patch',
    'PatchFn',
    'PermanentError',
    'ProgressRecord',
    'ProgressStorage',
    'RawBody',
    'RawEvent',
    'RawEventType',
    'Reason',
    'Resource',
    'SSLPeer',
    'SmartProgressStorage',
    'Spec',
    'Status',
    'StatusDiffBaseStorage',
    'StatusProgressStorage',
    'Store',
    'SyncChildren',
    'SyncDaemonStopperChecker',
    'SyncDeletionFlag',
    'TemporaryError',
    'UserInfo',
    'WebhookAutoServer',
    'WebhookAutoTunnel',
    'WebhookClientConfig',
    'WebhookClientConfigService',
    'WebhookDockerDesktopServer',
    'WebhookFn',
    'WebhookK3dServer',
    'WebhookMinikubeServer',
    'WebhookNgrokTunnel',
    'WebhookServer',
    'WebhookServerProtocol',
    'WebhookService',
    '__version__',
    'adjust_namespace',
    'adopt',
    'all_',
    'any_',
    'apply',
    'append_owner_reference',
    'build_object_reference',
    'build_owner_reference',
    'configure',
    'daemon',
    'ensure_crds',
    'event',
    'exception',
    'execute',
    'get_default_lifecycle',
    'get_default_registry',
    'harmonize_naming',
    'index',
    'info',
    'kind',
    'label',
    'lifecycles',
    'login_via_async_client',
    'login_via_client',
    'login_via_pykube',
    'login_with_kubeconfig',
    'login_with_service_account',
    'none_',
    'not_',
    'on',
    'operator',
    'register',
    'remove_owner_reference',
    'run',
    'run_tasks',
    'seen',
    'set_default_lifecycle',
    'set_default_registry',
    'spawn_tasks',
    'subhandler',
    'timer',
    'warn',
]

_LAZY = {
    'kopf._cogs.clients.logins': (
        'login_via_async_client',
        'login_via_client',
        'login_via_pykube',
        'login_with_kubeconfig',
        'login_with_service_account',
    ),
    'kopf._cogs.structs.conditions': ('Condition', 'Conditions'),
    'kopf._cogs.clients.serverside': ('ApplyConflictError', 'ApplyInvalidError', 'ApplyUnsupportedError'),
    'kopf._core.engines.admission': ('AdmissionError',),
    'kopf._core.engines.children': ('AsyncChildren', 'SyncChildren'),
    'kopf._core.engines.planning': ('Again',),
    'kopf._cogs.structs.model_adapters': ('ModelError',),
    'kopf._core.intents.declared_kinds': ('InvalidObjectError', 'kind'),
    'kopf._core.reactor.running': ('operator', 'run', 'run_tasks', 'spawn_tasks'),
    'kopf._kits.hierarchies': (
        'adjust_namespace',
        'adopt',
        'append_owner_reference',
        'harmonize_naming',
        'label',
        'remove_owner_reference',
    ),
    'kopf._kits.provisioning': ('ensure_crds',),
    'kopf._kits.services': ('WebhookService',),
    'kopf._kits.tunnels': ('WebhookAutoServer', 'WebhookAutoTunnel', 'WebhookNgrokTunnel'),
    'kopf._kits.writes': ('apply', 'seen'),
    'kopf._kits.webhooks': ('WebhookDockerDesktopServer', 'WebhookK3dServer', 'WebhookMinikubeServer', 'WebhookServer'),
}
"""Public names that are imported on first use: few files need them at once, or they are slow to import."""


if not TYPE_CHECKING:  # otherwise, type checkers would accept any attribute

    def __getattr__(name: str) -> Any:
        import importlib

        for module, names in _LAZY.items():
            if name in names:
                # Stored, so that this function is called once for each name.
                value = globals()[name] = getattr(importlib.import_module(module), name)
                return value
        raise AttributeError(_explain_missing(name), name=name)

    def _explain_missing(name: str) -> str:
        text = f"module {__name__!r} has no attribute {name!r}"
        if name.startswith('__'):
            return text
        import difflib

        decorators = [f'on.{each}' for each in dir(on) if callable(getattr(on, each)) and each.islower()]
        exact = [each for each in decorators if each == f'on.{name.lower()}']
        known = {each.rpartition('.')[2].lower(): each for each in (*decorators, *__all__)}
        found = exact or [known[each] for each in difflib.get_close_matches(name.lower(), known, n=1)]
        return f"{text}. Did you mean kopf.{found[0]}?" if found else text


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
