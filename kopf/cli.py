"""The command line: ``kopf run`` and its fellows.

It turns options into the arguments of what can equally be called from Python, sets up what only a process of our own
may set up (logging, the event loop), and says in a few words why it fails: tracebacks are shown only where they help,
i.e. for errors of unknown origin and under ``--debug``.

Exit codes: 0 if stopped by a signal or a flag, 1 if failed, 2 if the command line is wrong.
"""
import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from kopf._cogs.aiokits import loops
from kopf._cogs.aiokits.flags import Flag
from kopf._cogs.helpers import loaders, versions
from kopf._cogs.helpers.explanations import ExplainedError
from kopf._cogs.structs import credentials
from kopf._core.actions import loggers
from kopf._core.intents import causes, registries

if TYPE_CHECKING:
    from kopf._cogs.configs import configuration
    from kopf._core.reactor import operators

    Choice = click.Choice[str]
else:
    Choice = click.Choice

_DEV_PRIORITY = 666

logger = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False, repr=False)
class CLIControls:
    """What cannot be passed through a command line, but can be when the command is called from Python.

    Pass it as ``obj`` when invoking the command, as `kopf.testing.KopfRunner` does.
    """

    ready_flag: Flag | None = None
    """Is set when the operator is ready to work."""
    stop_flag: Flag | None = None
    """Stops the operator when it is set."""
    vault: credentials.Vault | None = None
    """The credentials to use, or to share with other operators."""
    registry: registries.OperatorRegistry | None = None
    """Where the handlers are declared, instead of a new registry."""
    settings: 'configuration.OperatorSettings | None' = None
    """The initial settings, instead of the defaults."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop to run in, instead of a new one; it is not closed at the end."""


class LogFormatParamType(Choice):
    """The type of options that choose a log format by its name, in any case."""

    def __init__(self) -> None:
        super().__init__([member.name.lower() for member in loggers.LogFormat], case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Turn the name into the format; the formats themselves are left as they are."""
        if isinstance(value, loggers.LogFormat):
            return value
        return loggers.LogFormat[super().convert(value, param, ctx).upper()]


def logging_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of logging to a command, and configure the logging before the command begins."""

    @click.option('-v', '--verbose', is_flag=True, help="Show what the framework and the handlers do.")
    @click.option('-d', '--debug', is_flag=True, help="Show everything, also of asyncio and aiohttp.")
    @click.option('-q', '--quiet', is_flag=True, help="Show only warnings and errors.")
    @click.option('--log-format', type=LogFormatParamType(), default='full', show_default=True,
                  help="How the lines of the log look.")
    @click.option('--log-refkey', type=str,
                  help="The key for the object's reference in JSON logs; 'object' by default.")
    @click.option('--log-prefix/--no-log-prefix', default=None,
                  help="Begin messages with the object's name; the default is yes, but no for JSON logs.")
    @functools.wraps(fn)
    def wrapper(
            *args: Any,
            verbose: bool,
            debug: bool,
            quiet: bool,
            log_format: loggers.LogFormat,
            log_refkey: str | None,
            log_prefix: bool | None,
            **kwargs: Any,
    ) -> Any:
        loggers.configure(
            debug=debug, verbose=verbose, quiet=quiet,
            log_format=log_format, log_refkey=log_refkey, log_prefix=log_prefix,
        )
        with _failing_shortly(debug=debug):
            return fn(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def _failing_shortly(*, debug: bool) -> Iterator[None]:
    """Log why the command has failed, and exit with the code 1."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except ExplainedError as exc:
        logger.critical("%s", _summarise(exc), exc_info=debug)
        raise SystemExit(1) from exc
    except Exception as exc:
        logger.critical("The operator has failed unexpectedly: %s", _summarise(exc), exc_info=True)
        raise SystemExit(1) from exc


def _summarise(exc: BaseException) -> str:
    """Put the error and its explicit causes in one line, unless their texts are there already."""
    text = str(exc) or repr(exc)
    cause = exc.__cause__
    # The texts of loading errors are complete, including the user's tracebacks.
    if cause is None or isinstance(exc, loaders.LoadError) or str(cause) in text:
        return text
    return f"{text} Caused by {type(cause).__name__}: {_summarise(cause)}"


@contextlib.contextmanager
def _event_loop(controls: CLIControls) -> Iterator[asyncio.AbstractEventLoop]:
    """Provide the loop that is given, or a new one: a fast one, if it is installed."""
    if controls.loop is not None:
        yield controls.loop
        return
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    # At the highest level of details, asyncio also reports slow callbacks, forgotten coroutines, etc.
    loop.set_debug(logging.getLogger('asyncio').isEnabledFor(logging.DEBUG))
    with loops.finishing(loop):
        yield loop


def _check_scope(namespaces: tuple[str, ...], *, clusterwide: bool) -> None:
    if namespaces and clusterwide:
        raise click.UsageError("Either --namespace or --all-namespaces can be used, not both.")


def _check_endpoint(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from kopf._core.engines import probing
    try:
        probing.Endpoint.parse(value)
    except probing.EndpointError as error:
        raise click.BadParameter(str(error)) from error
    return value


@click.group(name='kopf', context_settings={'auto_envvar_prefix': 'KOPF'})
@click.version_option(versions.version, prog_name='kopf')
def main() -> None:
    """Kubernetes operators in Python."""


def sandbox_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that tell what is in a sandbox to begin with."""
    existing = click.Path(exists=True)
    for option in [
        click.option('--pods', is_flag=True,
                     help="Let pods, jobs and deployments of the sandbox live, as if there was a node."),
        click.option('--load', 'loads', multiple=True, metavar='FILE', type=existing,
                     help="Then apply the objects of this file or folder; can be repeated."),
        click.option('--crd', 'crds', multiple=True, metavar='FILE', type=existing,
                     help="Apply the kinds of objects of this file or folder to the sandbox; can be repeated."),
    ]:
        fn = option(fn)
    return fn


@contextlib.contextmanager
def _credentials(controls: CLIControls, *, sandbox: bool, **options: Any) -> 'Iterator[credentials.Vault | None]':
    """Provide the credentials that are given, or those of a sandbox, which runs as long as they are needed."""
    if not sandbox:
        yield controls.vault
        return
    from kopf._kits.testing import launching
    with launching.serving(**options) as vault:
        yield vault


@main.command()
@logging_options
@click.option('-A', '--all-namespaces', 'clusterwide', is_flag=True, help="Serve the whole cluster.")
@click.option('-n', '--namespace', 'namespaces', multiple=True, metavar='PATTERN',
              help="Serve this namespace, or all matching ones; can be repeated.")
@click.option('--standalone', is_flag=True, default=None, help="Ignore other operators: no peering at all.")
@click.option('--dev', is_flag=True, help=f"Take over from other operators: the same as --priority={_DEV_PRIORITY}.")
@click.option('-L', '--liveness', 'liveness_endpoint', metavar='URL', callback=_check_endpoint,
              help="Where to serve the probes, e.g. http://0.0.0.0:8080/healthz.")
@click.option('-P', '--peering', 'peering_name', metavar='NAME', help="The peering object to use.")
@click.option('-p', '--priority', type=int, help="The priority among other operators.")
@click.option('-m', '--module', 'modules', multiple=True, metavar='NAME',
              help="Import the module with handlers, as 'python -m' would; can be repeated.")
@click.option('--sandbox', is_flag=True,
              help="Run against a new emulated API instead of a cluster, for development; see 'kopf sandbox'.")
@sandbox_options
@click.argument('paths', nargs=-1, type=click.Path())
@click.make_pass_decorator(CLIControls, ensure=True)
def run(
        controls: CLIControls,
        /,
        *,
        paths: tuple[str, ...],
        modules: tuple[str, ...],
        namespaces: tuple[str, ...],
        clusterwide: bool,
        dev: bool,
        priority: int | None,
        sandbox: bool,
        crds: tuple[str, ...],
        loads: tuple[str, ...],
        pods: bool,
        **options: Any,
) -> None:
    """Start an operator process and handle all the requests."""
    _check_scope(namespaces, clusterwide=clusterwide)
    if not sandbox and (crds or loads or pods):
        raise click.UsageError("--crd, --load and --pods are for --sandbox only: nothing is done to a real cluster.")
    from kopf._core.reactor import running
    registry = registries.SmartOperatorRegistry() if controls.registry is None else controls.registry
    # The decorators in the files to be loaded add the handlers there.
    registries.set_default_registry(registry)
    with _credentials(controls, sandbox=sandbox, crds=crds, loads=loads, pods=pods) as vault:
        loaders.preload(paths=paths, modules=modules)
        if sandbox and registry.activities.get_handlers(causes.Activity.AUTHENTICATION):
            logger.info("The login handlers are not called: the sandbox has brought its own credentials.")
        with _event_loop(controls) as loop:
            running.run(
                loop=loop,
                registry=registry,
                settings=controls.settings,
                vault=vault,
                stop_flag=controls.stop_flag,
                ready_flag=controls.ready_flag,
                namespaces=namespaces,
                clusterwide=clusterwide or (sandbox and not namespaces),
                priority=_DEV_PRIORITY if dev and priority is None else priority,
                **options,
            )


@main.command()
@click.option('--port', type=click.IntRange(0, 65535), default=0, metavar='NUMBER',
              help="The port to listen on; by default, any free one.")
@click.option('--kubeconfig', type=click.Path(dir_okay=False), metavar='FILE',
              help="Where to write the credentials; by default, a temporary file.")
@click.option('--rbac', is_flag=True,
              help="Let roles and bindings decide who may do what; by default, everybody may do everything.")
@click.option('--sharding', is_flag=True, help="Let lists and watches be restricted to shards (shardSelector).")
@click.option('--state', type=click.Path(dir_okay=False), metavar='FILE',
              help="Keep the objects in this file, and go on with those that it has; by default, all is lost.")
@sandbox_options
def sandbox(**options: Any) -> None:
    """Emulate a Kubernetes API, for development and tests."""
    from kopf._kits.testing import launching
    launching.serve(**options)


def command_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that tell which operators a command is for, and by whom it is given."""
    for option in [
        click.option('-P', '--peering', 'peering_name', required=True, metavar='NAME',
                     help="The peering object where the operators meet."),
        click.option('-i', '--id', 'identity', metavar='TEXT', help="On whose behalf; by default, USER@HOST."),
        click.option('-A', '--all-namespaces', 'clusterwide', is_flag=True, help="The cluster-wide operators."),
        click.option('-n', '--namespace', 'namespaces', multiple=True, metavar='PATTERN',
                     help="The operators of this namespace, or of all matching ones; can be repeated."),
    ]:
        fn = option(fn)
    return fn


@main.command()
@logging_options
@command_options
@click.option('--dev', is_flag=True, help=f"The same as --priority={_DEV_PRIORITY}.")
@click.option('-p', '--priority', type=int, help="Pause the operators of lower priorities.  [required unless --dev]")
@click.option('-t', '--lifetime', type=int, required=True, metavar='SECONDS', help="For how long at most.")
@click.option('-m', '--message', help="Why: a note for the log.")
@click.make_pass_decorator(CLIControls, ensure=True)
def freeze(
        controls: CLIControls,
        /,
        *,
        dev: bool,
        priority: int | None,
        lifetime: int,
        message: str | None,
        identity: str | None,
        **options: Any,
) -> None:
    """Pause the resource handling in the operator(s)."""
    if priority is None and not dev:
        raise click.UsageError("Missing option '-p' / '--priority'.")
    from kopf._core.engines import peering
    _run_command(controls, peering.PeeringCommand(
        identity=identity or peering.detect_own_id(manual=True),
        priority=_DEV_PRIORITY if priority is None else priority,
        lifetime=lifetime,
        message=message,
    ), **options)


@main.command()
@logging_options
@command_options
@click.make_pass_decorator(CLIControls, ensure=True)
def resume(controls: CLIControls, /, *, identity: str | None, **options: Any) -> None:
    """Resume the resource handling in the operator(s)."""
    from kopf._core.engines import peering
    command = peering.PeeringCommand(identity=identity or peering.detect_own_id(manual=True))
    _run_command(controls, command, **options)


def _run_command(
        controls: CLIControls,
        command: 'operators.Command',
        *,
        namespaces: tuple[str, ...],
        clusterwide: bool,
        peering_name: str,
) -> None:
    """Do what is commanded as an operator that has nothing to serve."""
    _check_scope(namespaces, clusterwide=clusterwide)
    from kopf._core.reactor import running
    registry = registries.SmartOperatorRegistry() if controls.registry is None else controls.registry
    with _event_loop(controls) as loop:
        running.run(
            loop=loop,
            registry=registry,
            settings=controls.settings,
            vault=controls.vault,
            stop_flag=controls.stop_flag,
            ready_flag=controls.ready_flag,
            namespaces=namespaces,
            clusterwide=clusterwide,
            peering_name=peering_name,
            _command=command,
        )


def launch() -> None:
    """Run the command line as a program of its own; raises `SystemExit`."""
    # What comes with events is freed without the collector, as it has no cycles. With the default thresholds, a third
    # of the time of large lists goes into looking for some. But handlers and their libraries do make cycles: so not
    # too rarely either, or they pile up to megabytes, which are never given back to the system.
    gc.set_threshold(10_000, 10, 10)
    main(prog_name='kopf')
