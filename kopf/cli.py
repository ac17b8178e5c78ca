"""
The command line: ``kopf run`` and the other commands.

It converts options to arguments of functions that can equally be called from Python. It also configures the logging and
the event loop of the whole process, which those functions must not do. It logs a failure in one line; a traceback is
added only to unexpected errors, and with ``--debug``.

Exit codes: 0 if stopped by a signal or a flag; 1 if failed; 2 if the command line is wrong. If the handler of an
activity calls ``sys.exit()``, its argument is the exit code.
"""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Unpack

import click

from kopf._cogs.aiokits import loops
from kopf._cogs.aiokits.flags import Flag
from kopf._cogs.helpers import loaders, malloc, versions
from kopf._cogs.helpers.explanations import ExplainedError, name_error
from kopf._cogs.structs import credentials
from kopf._core.actions import loggers
from kopf._core.actions.message_codes import name_code
from kopf._core.intents import causes, registries

if TYPE_CHECKING:
    from kopf._cogs.configs import configuration
    from kopf._core.reactor import operators
    from kopf._kits.testing import launching

    Choice = click.Choice[str]
else:
    Choice = click.Choice

_DEV_PRIORITY = 666

logger = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False, repr=False)
class CLIControls:
    """
    Arguments that only callers from Python can pass, because a command line cannot express them.

    Callers pass the controls as ``obj`` when they invoke the command, as `kopf.testing.KopfRunner` does.
    """

    ready_flag: Flag | None = None
    """The flag that is raised when the operator is ready to work."""
    stop_flag: Flag | None = None
    """The flag that stops the operator when it is raised."""
    vault: credentials.Vault | None = None
    """The vault with credentials to use, or to share with other operators."""
    provisioning_vault: credentials.Vault | None = None
    """The vault with the credentials for ``--apply-crds``, if these are other ones than those of the operator."""
    registry: registries.OperatorRegistry | None = None
    """The registry of handlers, instead of the default one."""
    settings: 'configuration.OperatorSettings | None' = None
    """The initial settings, instead of the defaults."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop to run in, instead of a new one; it is not closed at the end."""
    run: Callable[..., None] | None = None
    """The function to call with the options of the operator at the end of ``kopf run``, instead of `kopf.run`."""


class LogFormatParamType(Choice):
    """The type of options that choose a log format by its name, in any case."""

    def __init__(self) -> None:
        super().__init__([member.name.lower() for member in loggers.LogFormat], case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the name to the format; return formats as they are."""
        if isinstance(value, loggers.LogFormat):
            return value
        return loggers.LogFormat[super().convert(value, param, ctx).upper()]


class EnvironmentOption(click.Option):
    """
    An option that is also taken from the environment: by its long name, or by the name of its parameter.

    For example, ``--liveness`` of ``kopf run`` is ``$KOPF_RUN_LIVENESS`` or ``$KOPF_RUN_LIVENESS_ENDPOINT``.
    """

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the first variable that is set and not empty, if any."""
        value = super().resolve_envvar_value(ctx)
        names = [name.removeprefix('--').replace('-', '_').upper() for name in self.opts if name.startswith('--')]
        if value is None and ctx.auto_envvar_prefix is not None:
            found = [os.environ.get(f'{ctx.auto_envvar_prefix}_{name}') for name in names]
            value = next((text for text in found if text), None)
        return value


option = functools.partial(click.option, cls=EnvironmentOption)


def modules_option(
    text: str = "Import the module with handlers, as 'python -m' would; can be repeated.",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the option for the modules of the operator, with this help."""
    return option('-m', '--module', 'modules', multiple=True, metavar='NAME', help=text)


def logging_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of logging to a command, and configure the logging before the command begins."""

    @option('-v', '--verbose', is_flag=True, help="Log also what the framework does, step by step.")
    @option(
        '-d',
        '--debug',
        is_flag=True,
        help="Log everything, including asyncio and the requests; show tracebacks of failures.",
    )
    @option('-q', '--quiet', is_flag=True, help="Log only warnings and errors.")
    @option(
        '--log-format',
        type=LogFormatParamType(),
        default='full',
        show_default=True,
        help="full: with times and names of loggers; plain: only the messages; json: one JSON object in each line.",
    )
    @option('--log-refkey', type=str, help="The key for the object's reference in JSON logs; 'object' by default.")
    @option(
        '--log-prefix/--no-log-prefix',
        default=None,
        help="Begin messages with the object's name; the default is yes, but no for JSON logs.",
    )
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
            debug=debug,
            verbose=verbose,
            quiet=quiet,
            log_format=log_format,
            log_refkey=log_refkey,
            log_prefix=log_prefix,
        )
        with failing_shortly(debug=debug):
            return fn(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def failing_shortly(*, debug: bool) -> Iterator[None]:
    """Log why the command has failed, and exit with the code of the error, usually 1."""
    try:
        yield
    # Click itself shows these errors, with its own exit codes.
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except ExplainedError as exc:
        extra = {'message_code': name_code(type(exc))}
        logger.critical("%s", _summarise(exc), exc_info=debug, extra=extra)
        raise SystemExit(exc.exit_code) from exc
    except Exception as exc:
        logger.critical("The operator has failed unexpectedly: %s", name_error(exc), exc_info=True)
        raise SystemExit(1) from exc


def _summarise(exc: BaseException) -> str:
    """Return the error and its explicit causes in one line, without repeated texts."""
    text = str(exc) or repr(exc)
    cause = exc.__cause__
    # The message of a loading error already contains its cause, with the traceback of the user's module.
    if cause is None or isinstance(exc, loaders.LoadError) or str(cause) in text:
        return text
    return f"{text} Caused by {type(cause).__name__}: {_summarise(cause)}"


@contextlib.contextmanager
def _event_loop(controls: CLIControls) -> Iterator[asyncio.AbstractEventLoop]:
    """Return the event loop of the controls, or a new one: of uvloop if it is installed, otherwise of asyncio."""
    if controls.loop is not None:
        yield controls.loop
        return
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    # With --debug, asyncio also reports slow callbacks, forgotten coroutines, etc.
    loop.set_debug(logging.getLogger('asyncio').isEnabledFor(logging.DEBUG))
    with loops.finishing(loop):
        yield loop


def _check_scope(namespaces: tuple[str, ...], *, clusterwide: bool) -> None:
    if namespaces and clusterwide:
        raise click.UsageError("Either --namespace or --all-namespaces can be used, not both.")
    if wrong := [name for name in namespaces if not re.fullmatch(r'[-a-z0-9*?!\[\],\s]*[a-z0-9*?\]],?\s*', name)]:
        pattern = wrong[0].replace('.*', '*').strip('^$')
        hint = (
            f"In patterns, * stands for any characters: --namespace={pattern!r}."
            if pattern != wrong[0] and pattern != '*'
            else "For all of them, use --all-namespaces instead of --namespace."
        )
        raise click.UsageError(f"No namespace can be named {wrong[0]!r}. {hint}")


class _Auto(Choice):
    """The type of an option with one value, which users take for an option without a value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            name = param.opts[0] if param is not None else ''
            raise click.BadParameter(f"{error.message} Write {name}={self.choices[0]}.", ctx, param) from error


def _check_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from kopf._cogs.configs.configuration import explain_name

    if reason := explain_name(value):
        raise click.BadParameter(f"no object can be named {value!r}: {reason}")
    return value


_ENDPOINTS = {'metrics_endpoint': {'purpose': 'metrics', 'example': 'http://0.0.0.0:9090/metrics'}}
"""The purposes and examples of endpoints for error messages; see `status_server.Endpoint.parse`."""


def _check_endpoint(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from kopf._core.engines import status_server

    try:
        status_server.Endpoint.parse(value, **_ENDPOINTS.get(param.name or '', {}))
    except status_server.EndpointError as error:
        raise click.BadParameter(str(error)) from error
    return value


_SYNONYMS = (
    {'--metrics', '--monitoring', '--prometheus', '--service-monitor'},
    {'--liveness', '--probes', '--health', '--healthz', '--readiness'},
    {'--leader-election', '--leader-elect', '--ha', '--high-availability', '--replicas'},
    {'--lease', '--lease-name', '--lease-lock-name', '--leader-election-id'},
    {'--inspect', '--inspector', '--ui', '--web', '--dashboard'},
    {'--all-namespaces', '--clusterwide', '--cluster-wide', '--cluster'},
    {'--verbose', '--log-level', '--loglevel'},
    {'--sandbox', '--local', '--fake', '--emulate', '--no-cluster'},
    {'--reload', '--hot-reload', '--autoreload'},
    {'--load', '--apply', '--objects', '--manifests'},
    {'--crd', '--crds', '--apply-crds'},
    {'--tracing', '--otel', '--opentelemetry', '--trace'},
    {'--kustomize', '--helm', '--output', '--out', '--chart'},
)
"""Words for the same purpose, in our commands and in other tools. They are suggested instead of similar letters."""


class _Command(click.Command):
    """A command that suggests its option for a purpose if the user has called it by another word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = {name for param in self.params for name in param.opts}
            meant = {word for words in _SYNONYMS if error.option_name in words for word in words & own}
            if not meant:
                raise
            hint = f"Did you mean {' or '.join(sorted(meant))}?"
            raise click.NoSuchOption(
                error.option_name, f"No such option {error.option_name}. {hint}", ctx=ctx
            ) from None


class _Commands(click.Group):
    """The group of commands, with a hint for users who forget `run`."""

    command_class = _Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and args[0].endswith('.py'):
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean: kopf run {shlex.join(args)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(name='kopf', cls=_Commands, context_settings={'auto_envvar_prefix': 'KOPF'})
@click.version_option(
    versions.version, prog_name='kopf', message=f'%(prog)s, version %(version)s ({versions.compatibility})'
)
def main() -> None:
    """
    Kubernetes operators in Python.

    For the options of a command: kopf COMMAND --help. Each of them can also be given by an environment variable, with
    the names of the command and of the option: e.g. KOPF_RUN_LOG_FORMAT=json, KOPF_RUN_VERBOSE=1, or
    KOPF_RUN_NAMESPACE='shop team-*' for several values.

    \b
    Examples:
      kopf run handlers.py                       serve the whole cluster
      kopf run --sandbox handlers.py             without any cluster
      kopf freeze -A -P default -p 100 -t 3600   pause operators for an hour
    """


def sandbox_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the initial state of a sandbox."""
    existing = click.Path(exists=True)
    for add in [
        option(
            '--pods',
            is_flag=True,
            help="Emulate a node: pods run, jobs complete, deployments and stateful sets become available.",
        ),
        option(
            '--load',
            'loads',
            multiple=True,
            metavar='FILE',
            type=existing,
            help="Apply the objects of this file or folder to the sandbox, after the CRDs; can be repeated.",
        ),
        option(
            '--crd',
            'crds',
            multiple=True,
            metavar='FILE',
            type=existing,
            help="Apply the CRDs of this file or folder to the sandbox; can be repeated.",
        ),
    ]:
        fn = add(fn)
    return fn


@contextlib.contextmanager
def _launched(*, sandbox: bool, **options: Any) -> 'Iterator[launching.Launched | None]':
    """Run a sandbox while the context lasts, if it is requested."""
    if not sandbox:
        yield None
        return
    from kopf._kits.testing import launching

    with launching.serving(**options) as launched:
        yield launched


def _get_options(controls: CLIControls, registry: registries.OperatorRegistry) -> 'operators.OperatorOptions':
    """Return the options of an operator that cannot be given on a command line."""
    return {
        'registry': registry,
        'settings': controls.settings,
        'vault': controls.vault,
        'stop_flag': controls.stop_flag,
        'ready_flag': controls.ready_flag,
    }


def _load_alone(paths: tuple[str, ...], modules: tuple[str, ...]) -> registries.OperatorRegistry:
    """Import the files and modules into a new default registry, so that handlers of a calling program stay separate."""
    registries.set_default_registry(None)
    loaders.preload(paths=paths, modules=modules)
    return registries.get_default_registry()


def _serve(controls: CLIControls, options: 'operators.OperatorOptions') -> None:
    """Run the operator in this process until it is stopped."""
    if controls.run is not None:
        controls.run(**options)
        return
    # Why not at the top? ``kopf --help`` and wrong options must not wait for the import.
    from kopf._core.reactor import running

    with _event_loop(controls) as loop:
        running.run(loop=loop, **options)


def _check_processes(processes: int, *, reload: bool, shards: str | None) -> None:
    if reload and processes > 1:
        raise click.UsageError("Either --reload or --processes can be used, not both.")
    if processes > 1 and shards is None:
        raise click.UsageError("--processes is for operators with --shards: each process serves some of the objects.")


def _run_children(
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    options: 'operators.OperatorOptions',
    *,
    processes: int,
    **sandbox: Any,
) -> None:
    """
    Run the operator in child processes, and the sandbox, if it is requested, in this process.

    With one process (``--reload``), start a new child whenever the files change. With several, run them side by side.
    """
    from kopf._kits.child_operators import Parent

    # Use the original arguments: the processes of the operator must get the same ones.
    arguments = sys.argv[1:]
    with _launched(**sandbox) as launched:
        parent, load = Parent(launched is not None), (lambda: None) if launched is None else launched.load_patiently
        if processes == 1:
            from kopf._kits import reloading

            reloading.run_reloading(arguments, reloading.find_roots(paths, modules), parent, started=load)
            return
        from kopf._kits import supervising

        threading.Thread(target=load, daemon=True).start()
        endpoints = {'liveness': options['liveness_endpoint'], 'metrics': options['metrics_endpoint']}
        raise SystemExit(supervising.supervise(supervising.Group(arguments, processes, parent), **endpoints))


def _follow_parent(controls: CLIControls, options: 'operators.OperatorOptions') -> bool | None:
    """
    Adjust the options and the controls to the parent process, if ``kopf run`` has started this process as a child.

    Returns:
        Whether the parent runs a sandbox; ``None`` if this process is not a child.
    """
    if 'KOPF_PARENT' not in os.environ:  # checked here so that other operators do not import the module
        return None
    from kopf._kits.child_operators import Parent, make_sandbox_vault

    parent = Parent.take()
    parent.follow()
    if parent.sandboxed:
        controls.vault = make_sandbox_vault()
    if (place := parent.place) is not None:
        options['liveness_endpoint'] = place.make_local_url(options['liveness_endpoint'])
        options['metrics_endpoint'] = place.make_local_url(options['metrics_endpoint'])
        controls.ready_flag = place.join()
    return parent.sandboxed


def _report_idle_handlers(registry: registries.OperatorRegistry, sources: list[str], *, sandbox: bool) -> None:
    """Warn if there are no handlers; log if login handlers are not called, as the sandbox has its credentials."""
    if not any(registry.iter_handlers()):
        logger.warning(
            "There are no handlers%s: nothing will be handled. Name the files with decorated functions, "
            "such as those with @kopf.on.create(...).",
            f" in {', '.join(sources)}" if sources else "",
        )
    if sandbox and registry.activities.get_handlers(causes.Activity.AUTHENTICATION):
        logger.info("The login handlers are not called: the operator uses the credentials of the sandbox.")


def _report_idle_settings(modules: tuple[str, ...], controls: CLIControls) -> None:
    """Warn of settings that are made in a file: the operator has its own ones, which startup handlers get."""
    from kopf._cogs.configs.configuration import OperatorSettings

    for module in loaders.list_loaded(modules):
        for name, value in vars(module).items():
            if isinstance(value, OperatorSettings) and value is not controls.settings:
                logger.warning(
                    "The settings %r in %s have no effect: the operator has its own ones. Change these in a function "
                    "with @kopf.on.startup(), which gets them as the argument settings.",
                    name,
                    module.__file__,
                )


def _apply_crds(
    registry: registries.OperatorRegistry,
    launched: 'launching.Launched | None',
    controls: CLIControls,
) -> None:
    """Apply the CRDs of the declared kinds: to the sandbox now, to a cluster when the operator starts."""
    from kopf._kits.definitions import crd_commands

    if launched is None:
        crd_commands.apply_at_start(registry, vault=controls.provisioning_vault)
    else:
        launched.apply(crd_commands.make_declared_crds(registry))


def _load(
    launched: 'launching.Launched',
    controls: CLIControls,
    registry: registries.OperatorRegistry,
) -> tuple['configuration.OperatorSettings', Flag]:
    """
    Apply the objects of ``--load`` before the operator starts, or, if it has webhooks, when it is ready to check them.

    Returns:
        The settings and the readiness flag. The caller must pass both to the operator.
    """
    from kopf._cogs.configs import configuration

    settings = configuration.OperatorSettings() if controls.settings is None else controls.settings
    ready_flag = threading.Event() if controls.ready_flag is None else controls.ready_flag
    if registry.webhooks or registry.conversions:
        from kopf._kits.definitions.crd_conversions import waits_for_conversion
        from kopf._kits.testing.launching import AwaitedWebhooks

        webhooks = sorted({f'{handler.type.value}webhookconfigurations' for handler in registry.webhooks})
        is_pending = functools.partial(waits_for_conversion, registry=registry)
        launched.load_checked(AwaitedWebhooks(webhooks, is_pending), settings, ready_flag)
    else:
        launched.load()
    return settings, ready_flag


@main.command()
@logging_options
@option('-A', '--all-namespaces', 'clusterwide', is_flag=True, help="Serve all namespaces; the default without -n.")
@option(
    '-n',
    '--namespace',
    'namespaces',
    multiple=True,
    metavar='PATTERN',
    help="Serve this namespace, or those that match, such as 'team-*,!team-x'; can be repeated.",
)
@option(
    '--standalone', is_flag=True, default=None, help="Ignore other operators that serve the same objects: no peering."
)
@option('--dev', is_flag=True, help=f"Take over from other operators: the same as --priority={_DEV_PRIORITY}.")
@option(
    '-L',
    '--liveness',
    'liveness_endpoint',
    metavar='URL',
    callback=_check_endpoint,
    help="Where to serve the probes, e.g. http://0.0.0.0:8080/healthz.",
)
@option(
    '--metrics',
    'metrics_endpoint',
    metavar='URL',
    callback=_check_endpoint,
    help="Where to serve metrics, e.g. http://0.0.0.0:9090/metrics; the port can be the same as that of the probes.",
)
@option('--tracing', is_flag=True, help="Make traces by OpenTelemetry, configured by the variables OTEL_*.")
@option('--inspect', is_flag=True, help="Show the operator in a browser and to 'kopf top', on this machine only.")
@option(
    '--scanning/--no-scanning',
    default=None,
    help="Notice new resources and namespaces, the default; without it, roles of namespaces can be enough.",
)
@option(
    '-P',
    '--peering',
    'peering_name',
    metavar='NAME',
    callback=_check_name,
    help="The peering object where operators meet; the operator waits until it exists.",
)
@option(
    '-p', '--priority', type=int, help="The operator with the highest priority works, the others pause; 0 by default."
)
@option(
    '--leader-election',
    is_flag=True,
    default=None,
    help="Let only one of several replicas work: they elect it by a Lease, and the others stand by.",
)
@option(
    '--shards',
    type=_Auto(['auto']),
    help="Let several members work: they share the objects by Leases, each handles its part.",
)
@option(
    '--lease',
    'lease_name',
    metavar='NAME',
    callback=_check_name,
    help="With --leader-election or --shards: the name of the Lease, another one for each operator of a namespace.",
)
@option(
    '--processes',
    type=click.IntRange(1),
    default=1,
    metavar='NUMBER',
    help="Run this number of processes, to use several cores; it requires --shards, to divide the objects.",
)
@modules_option()
@option(
    '--sandbox',
    is_flag=True,
    help="Run against a new emulated API instead of a cluster, for development; see 'kopf sandbox'.",
)
@option(
    '--reload', is_flag=True, help="Restart the operator when its files change; the sandbox goes on. Development only."
)
@option(
    '--apply-crds',
    is_flag=True,
    help="Create or update the CRDs of the declared kinds before the start; always done with --sandbox.",
)
@sandbox_options
@click.argument('paths', nargs=-1, type=click.Path())
@click.make_pass_decorator(CLIControls, ensure=True)
def run(
    controls: CLIControls,
    /,
    *,
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    dev: bool,
    sandbox: bool,
    reload: bool,
    processes: int,
    apply_crds: bool,
    crds: tuple[str, ...],
    loads: tuple[str, ...],
    pods: bool,
    **options: 'Unpack[operators.OperatorOptions]',
) -> None:
    """
    Run an operator until it is stopped by Ctrl-C or SIGTERM.

    PATHS are Python files with handlers. They are imported in this order, and the modules of -m after them; the
    handlers of all of them are one operator. The operator gets its credentials from its login handlers; without them,
    from the kubeconfig or from the service account of its pod. Logs go to the standard error.

    \b
    Examples:
      kopf run handlers.py -v                      the whole cluster, with more logs
      kopf run -n shop -n 'team-*,!team-x' main.py only these namespaces
      kopf run -A --dev main.py                    while the deployed operator pauses
      kopf run -A -L http://:8080/healthz -m app   in a pod, with probes
      kopf run --sandbox --crd crd.yaml main.py    without any cluster

    The exit code is 0 if stopped, 1 if failed, 2 if the command line is wrong.
    """
    _check_scope(tuple(map(str, options['namespaces'])), clusterwide=options['clusterwide'])
    if not sandbox and (crds or loads or pods):
        raise click.UsageError("--crd, --load and --pods are for --sandbox only: nothing is done to a real cluster.")
    sandboxed = _follow_parent(controls, options)
    if sandboxed is None and (reload or processes > 1):
        _check_processes(processes, reload=reload, shards=options.get('shards'))
        _run_children(paths, modules, options, processes=processes, sandbox=sandbox, crds=crds, loads=loads, pods=pods)
        return
    if dev and options['priority'] is None:
        options['priority'] = _DEV_PRIORITY
    if sandbox and not options['namespaces']:
        options['clusterwide'] = True
    # Programs that call `main` have handlers in the default registry; the handlers of the files are added there.
    registry = registries.get_default_registry() if controls.registry is None else controls.registry
    # Set it before the files are loaded: their decorators use the default registry.
    registries.set_default_registry(registry)
    with _launched(sandbox=sandbox and sandboxed is None, crds=crds, loads=loads, pods=pods) as launched:
        loaders.preload(paths=paths, modules=modules)
        _report_idle_handlers(registry, [*paths, *modules], sandbox=sandbox)
        _report_idle_settings(modules, controls)
        options.update(_get_options(controls, registry))
        if registry.kinds and (apply_crds or sandbox):
            _apply_crds(registry, launched, controls)
        if launched is not None:
            options['settings'], options['ready_flag'] = _load(launched, controls, registry)
            options['vault'] = launched.vault
        _serve(controls, options)


@main.command()
@modules_option("Import the module with kinds, as 'python -m' would; can be repeated.")
@option(
    '--check',
    'former',
    metavar='FILE',
    type=click.Path(exists=True),
    help="Instead of the CRDs, print how they differ from those in this file or folder: only changes that break "
    "stored objects or clients.",
)
@option(
    '--service',
    metavar='NAMESPACE/NAME',
    help="The Service by which conversions between versions reach the operator; as 'kopf manifests' creates it.",
)
@click.argument('paths', nargs=-1, type=click.Path())
def crd(*, paths: tuple[str, ...], modules: tuple[str, ...], former: str | None, service: str | None) -> None:
    """
    Print the CRDs of the kinds that an operator declares with @kopf.kind.

    PATHS are Python files, as for 'kopf run'. The CRDs go to the standard output as YAML, warnings to the standard
    error.

    \b
    Examples:
      kopf crd app.py > crd.yaml
      kopf crd app.py | kubectl apply -f -
      kopf crd app.py --check crd.yaml      before the next release

    The exit code is 0 if done; 1 if --check has found something, or if a class cannot be a CRD.
    """
    with failing_shortly(debug=False):
        registry = _load_alone(paths, modules)
        from kopf._kits.definitions import crd_commands

        raise SystemExit(crd_commands.print_crds(registry, former=former, service=service))


@main.command()
@option('--group', default='example.com', show_default=True, metavar='DOMAIN', help="The API group of its kind.")
@option('--kind', metavar='NAME', help="The kind in CamelCase; by default, it is made from the name of the folder.")
@option('--plural', metavar='NAME', help="The plural name of the kind in URLs; by default, it is made from the kind.")
@click.argument('folder', type=click.Path())
def init(*, folder: str, group: str, kind: str | None, plural: str | None) -> None:
    """
    Write a new operator into FOLDER: with a kind, a test, and an image.

    \b
    Example:
      kopf init shop-operator --group example.com
      cd shop-operator
      pip install -r requirements.txt pytest
      pytest
    """
    with failing_shortly(debug=False):
        from kopf._kits.packaging import projects

        projects.create_project(folder, group=group, kind=kind, plural=plural)


@main.command()
@modules_option("Import the module with handlers; the container does the same. Can be repeated.")
@option('--image', required=True, metavar='IMAGE', help="The image of the operator, with its files in /app.")
@option('--name', metavar='NAME', help="The name of all objects; by default, that of the first file or its folder.")
@option('--in', 'namespace', default='default', show_default=True, metavar='NAME', help="The namespace to run in.")
@option('-A', '--all-namespaces', 'clusterwide', is_flag=True, help="Serve all namespaces; the default without -n.")
@option('-n', '--namespace', 'namespaces', multiple=True, metavar='NAME', help="Serve this namespace; can be repeated.")
@option('--replicas', type=click.IntRange(1), default=1, show_default=True, help="Pods; two or more elect a leader.")
@option('--shards', type=_Auto(['auto']), help="Let the replicas share the objects instead: all of them work.")
@option(
    '--peering',
    metavar='NAME',
    help="Let the operator meet others in this peering object, e.g. to be paused by 'kopf freeze'.",
)
@option(
    '--no-scanning',
    is_flag=True,
    help="Do not notice new resources and namespaces, so that with -n, most operators need no cluster role.",
)
@option('--inspect', is_flag=True, help="Permit 'kopf top' in the pod: kubectl exec deployment/NAME -- kopf top")
@option(
    '--tracing',
    is_flag=True,
    help="Make traces; name the collector by --env OTEL_EXPORTER_OTLP_ENDPOINT=URL. The image needs the extra "
    "'tracing' and, for a collector, the package opentelemetry-exporter-otlp-proto-http.",
)
@option('--metrics', is_flag=True, help="Serve metrics, and add their port to the Service.")
@option('--monitoring', is_flag=True, help="Serve metrics, and add a ServiceMonitor for the Prometheus operator.")
@option('--env', multiple=True, metavar='NAME=VALUE', help="A variable of the pods; can be repeated.")
@option(
    '--env-from',
    multiple=True,
    metavar='KIND/NAME',
    help="Make variables of all keys of secret/NAME or configmap/NAME; can be repeated.",
)
@option(
    '--crd',
    'crds',
    multiple=True,
    metavar='FILE',
    type=click.Path(exists=True),
    help="Include the CRDs of this file or folder; can be repeated.",
)
@option('--kustomize', type=click.Path(file_okay=False), metavar='DIR', help="Write a folder for kustomize.")
@option('--helm', type=click.Path(file_okay=False), metavar='DIR', help="Write a chart for Helm.")
@click.argument('paths', nargs=-1, type=click.Path())
def manifests(
    *,
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    name: str | None,
    clusterwide: bool,
    namespaces: tuple[str, ...],
    crds: tuple[str, ...],
    kustomize: str | None,
    helm: str | None,
    env: tuple[str, ...],
    env_from: tuple[str, ...],
    **options: Any,
) -> None:
    """
    Print what a cluster needs to run an operator: CRDs, roles, the deployment, and more.

    PATHS are Python files, as for 'kopf run'. The roles have only the permissions that the framework needs for
    the handlers. If handlers make requests with other clients, add the permissions for them.

    \b
    Examples:
      kopf manifests app.py --image registry.example.com/app:1.0 | kubectl apply -f -
      kopf manifests app.py --image registry.example.com/app:1.0 --replicas 2 --kustomize deploy/
      kopf manifests app.py --image registry.example.com/app:1.0 --env-from secret/app-database
    """
    _check_scope(namespaces, clusterwide=clusterwide)
    with failing_shortly(debug=False):
        registry = _load_alone(paths, modules)
        from kopf._kits.packaging import deployment_manifests, manifest_commands

        manifest_commands.print_manifests(
            registry,
            deployment_manifests.Options(
                name=name or manifest_commands.guess_name([*paths, *modules]),
                paths=[f'/app/{os.path.basename(path)}' for path in paths],
                modules=modules,
                namespaces=namespaces,
                env=manifest_commands.parse_variables(env),
                env_from=manifest_commands.parse_sources(env_from),
                **options,
            ),
            crds=crds,
            kustomize=kustomize,
            helm=helm,
        )


@main.command()
@option(
    '--port',
    type=click.IntRange(0, 65535),
    default=0,
    metavar='NUMBER',
    help="The port to listen on; by default, any free one.",
)
@option(
    '--kubeconfig',
    type=click.Path(dir_okay=False),
    metavar='FILE',
    help="Where to write the credentials; by default, a temporary file.",
)
@option(
    '--rbac',
    is_flag=True,
    help="Check permissions by roles and bindings; by default, all requests are permitted.",
)
@option('--sharding', is_flag=True, help="Support shardSelector: lists and watches of only a part of the objects.")
@option(
    '--state',
    type=click.Path(dir_okay=False),
    metavar='FILE',
    help="Load the objects from this file, and store them there; by default, they are lost at the end.",
)
@sandbox_options
def sandbox(**options: Any) -> None:
    """
    Serve an emulated Kubernetes API, for development and tests.

    It serves the built-in kinds, and the kinds of your CRDs. There are no nodes, and containers are not run. It prints
    the path of a kubeconfig: set $KUBECONFIG to this path, and operators, kubectl, and other clients use the sandbox.

    \b
    Example:
      kopf sandbox --crd crd.yaml --kubeconfig /tmp/sandbox &
      KUBECONFIG=/tmp/sandbox kopf run -A handlers.py
    """
    from kopf._kits.testing import launching

    launching.serve(**options)


@main.command()
@option('--alerts', is_flag=True, help="Print the alert rules for Prometheus instead, in YAML.")
@option('--title', default='Operators', show_default=True, metavar='TEXT', help="The title of the dashboard.")
def grafana(*, alerts: bool, title: str) -> None:
    """
    Print a dashboard for Grafana with the metrics of operators.

    \b
    Example:
      kopf grafana > board.json
      kopf grafana --alerts > alerts.yaml
    """
    from kopf._kits import boards

    if alerts:
        from kopf._kits.yaml_texts import dump_yaml

        click.echo(dump_yaml([boards.make_alerts()], width=1000), nl=False)
    else:
        import json

        click.echo(json.dumps(boards.make_board(title), indent=2))


@main.command()
@option('--pid', type=int, metavar='NUMBER', help="The process of the operator, if there are several.")
@option('--url', metavar='URL', help="The address of the operator, e.g. of a forwarded port; with --token.")
@option('--token', metavar='TEXT', help="The token for --url, if the file of the operator is not on this machine.")
@option('--folder', metavar='PATH', help="The folder with the files of running operators: settings.inspecting.folder.")
@option('--limit', type=click.IntRange(min=0), default=20, show_default=True, help="How many waiting objects to show.")
@option('--stacks', is_flag=True, help="Show the whole stacks of the running handlers.")
@option('--json', 'as_json', is_flag=True, help="Print what the operator has responded, for scripts.")
@option('--link', is_flag=True, help="Print only the link to the inspector, as the operator does at its start.")
def top(*, as_json: bool, link: bool, stacks: bool, limit: int, **options: Any) -> None:
    """
    Show what a running operator is doing: which handlers run and where they are, which objects wait and why.

    The operator must have been started with --inspect, by the same user on the same machine, or in the same container.

    \b
    Example:
      kopf top --stacks
      xdg-open $(kopf top --link)
      kubectl exec deployment/operator -- kopf top
    """
    from kopf._kits import top as tops

    with failing_shortly(debug=False):
        operator = tops.find_operator(**options)
        if link:
            click.echo(operator.link)
            return
        facts = tops.fetch(operator, limit=limit)
        click.echo(tops.dump(facts) if as_json else tops.render(facts, stacks=stacks))


def _parse_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    from kopf._kits.checking import command_line

    try:
        return command_line.parse_seconds(value)
    except command_line.OptionError as error:
        raise click.BadParameter(str(error)) from error


@main.command()
@modules_option("Import the module with handlers, as 'kopf run' does; can be repeated.")
@sandbox_options
@option(
    '--observe',
    'observed',
    multiple=True,
    metavar='MODULE:NAME',
    help="Also compare this function's result, or this variable: a state outside of the cluster; can be repeated.",
)
@option(
    '-n',
    '--namespace',
    'namespaces',
    multiple=True,
    metavar='PATTERN',
    help="Let the operator serve these namespaces only, as 'kopf run' does; by default, all of them; can be repeated.",
)
@option('-A', '--all-namespaces', 'clusterwide', is_flag=True, help="Let it serve all namespaces; it is the default.")
@option(
    '-P',
    '--peering',
    'peering_name',
    metavar='NAME',
    callback=_check_name,
    help="The peering object of the operator, if it has one.",
)
@option('--leader-election', is_flag=True, help="Let replicas of the operator elect a leader.")
@option(
    '--real-time',
    is_flag=True,
    help="Run the operator as a process with real sockets, threads, and subprocesses: fewer plans, the same checks.",
)
@option(
    '--cluster',
    metavar='CONTEXT',
    help="Check it in this context of the kubeconfig: through a proxy, each run in its own namespace, in real time.",
)
@option(
    '--apply-crds', is_flag=True, help="With --cluster: create the CRDs that are missing, and delete them at the end."
)
@option(
    '--rest',
    default='3s',
    show_default=True,
    metavar='TIME',
    callback=_parse_duration,
    help="In real time: after how long without writes the operator is at rest.",
)
@option('--seed', type=int, default=1, show_default=True, help="Another seed gives another order of events.")
@option(
    '--budget',
    metavar='TIME',
    callback=_parse_duration,
    help="How long it may take: e.g. 60s or 5m; by default, 60s, or 5m in real time. If something is found, the last "
    "fifth of it is for smaller plans with the same findings.",
)
@option(
    '--jobs',
    type=click.IntRange(min=1),
    help="How many plans are run at once; by default, one on each processor, or four in real time.",
)
@option('-x', '--exitfirst', 'only_first', is_flag=True, help="End with the first finding.")
@option(
    '--plan',
    'plan_file',
    metavar='FILE',
    type=click.Path(exists=True, dir_okay=False),
    help="Run only this plan: a file that an earlier check has written.",
)
@option(
    '--save',
    metavar='FOLDER',
    default='.',
    type=click.Path(file_okay=False),
    help="Where to write the plans that have found something; by default, to the current folder.",
)
@option('--junit', metavar='FILE', type=click.Path(dir_okay=False), help="Write the results to a file for CI.")
@option('--log', metavar='FILE', type=click.Path(dir_okay=False), help="With --plan: write all requests to a file.")
@click.argument('paths', nargs=-1, type=click.Path())
def check(**options: Any) -> None:
    """
    Test an operator by breaking it.

    PATHS are the files with handlers, as for 'kopf run'. The objects of --load are created in a sandbox with virtual
    time, one after another; if an object occurs twice in the files, the second one is applied as an edit. Then this run
    is repeated, each time with one disturbance: the operator is killed at a request, a request fails, a watch is
    silent, the object is edited or deleted meanwhile, and so on. All runs must end with the same objects.

    For each finding, the command writes a file (a plan), which can be run again with the same result.

    \b
    Examples:
      kopf check app.py --crd crd.yaml --load example.yaml
      kopf check app.py --crd crd.yaml --load example.yaml --budget 5m --junit report.xml
      kopf check app.py --crd crd.yaml --load example.yaml --observe cloud:servers
      kopf check app.py --crd crd.yaml --load example.yaml --plan kopf-check-1.yaml
      kopf check app.py --crd crd.yaml --load example.yaml --real-time
      kopf check app.py --crd crd.yaml --load example.yaml --cluster kind-test --apply-crds

    The exit code is 0 if nothing is found, 1 if something is found, 2 if the operator cannot be checked.
    """
    if not options['paths'] and not options['modules']:
        raise click.UsageError("Name the files with the handlers, or use -m for modules.")
    _check_scope(options['namespaces'], clusterwide=options.pop('clusterwide'))
    if options['log'] and not options['plan_file']:
        raise click.UsageError("--log is for --plan only.")
    from kopf._kits.checking import command_line

    raise SystemExit(command_line.check(command_line.Options(**options)))


@main.command()
@logging_options
@option('-A', '--all-namespaces', 'clusterwide', is_flag=True, help="Look for the Leases in all namespaces.")
@option(
    '-n',
    '--namespace',
    'namespaces',
    multiple=True,
    metavar='NAME',
    help="Look for the Leases in this namespace; can be repeated.",
)
@option('--json', 'as_json', is_flag=True, help="Print the facts as JSON, for scripts.")
@click.argument('name', required=False)
@click.make_pass_decorator(CLIControls, ensure=True)
def shards(
    controls: CLIControls,
    /,
    *,
    name: str | None,
    as_json: bool,
    clusterwide: bool,
    namespaces: tuple[str, ...],
) -> None:
    """
    Show how the members of an operator share the objects: which member holds which buckets, and since when.

    NAME is the name of the group, or of the operator; by default, all groups are shown.

    \b
    Example:
      kopf shards -n ops my-operator
      kopf shards -A --json
    """
    from kopf._core.engines import shard_command

    command = shard_command.ShardsCommand(name)
    _run_command(controls, command, namespaces=namespaces, clusterwide=clusterwide, peering_name=None)
    click.echo(shard_command.dump(command.groups) if as_json else shard_command.render(command.groups))


def command_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select the operators to pause or resume, and the identity of the user."""
    for add in [
        option(
            '-P',
            '--peering',
            'peering_name',
            required=True,
            metavar='NAME',
            callback=_check_name,
            help="The peering object where the operators meet.",
        ),
        option('-i', '--id', 'identity', metavar='TEXT', help="The name in the peering record; by default, USER@HOST."),
        option('-A', '--all-namespaces', 'clusterwide', is_flag=True, help="Select the cluster-wide operators."),
        option(
            '-n',
            '--namespace',
            'namespaces',
            multiple=True,
            metavar='PATTERN',
            help="Select the operators of this namespace, or of all matching namespaces; can be repeated.",
        ),
    ]:
        fn = add(fn)
    return fn


@main.command()
@logging_options
@command_options
@option('--dev', is_flag=True, help=f"The same as --priority={_DEV_PRIORITY}.")
@option('-p', '--priority', type=int, help="Pause the operators of lower priorities.  [required unless --dev]")
@option('-t', '--lifetime', type=int, required=True, metavar='SECONDS', help="End the pause after this time.")
@option('-m', '--message', help="The reason, for the log.")
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
    """
    Pause operators for a while.

    It puts a record into the peering object, as if there were an operator of this priority. All operators with lower
    priorities that use this object pause, until they are resumed or the time is over. Then they handle what they have
    missed.

    \b
    Example:
      kopf freeze -A -P default -p 100 -t 3600 -m "Maintenance."
      kopf resume -A -P default
    """
    if priority is None and not dev:
        raise click.UsageError("Missing option '-p' / '--priority'.")
    from kopf._core.engines import peering

    _run_command(
        controls,
        peering.PeeringCommand(
            identity=identity or peering.detect_own_id(manual=True),
            priority=_DEV_PRIORITY if priority is None else priority,
            lifetime=lifetime,
            message=message,
        ),
        **options,
    )


@main.command()
@logging_options
@command_options
@click.make_pass_decorator(CLIControls, ensure=True)
def resume(controls: CLIControls, /, *, identity: str | None, **options: Any) -> None:
    """
    Resume paused operators.

    The command ends the pause that 'kopf freeze' has begun: it removes the record from the peering object. Run it as
    the same user on the same machine, or with the same --id.

    \b
    Example:
      kopf resume -A -P default
    """
    from kopf._core.engines import peering

    command = peering.PeeringCommand(identity=identity or peering.detect_own_id(manual=True))
    _run_command(controls, command, **options)


def _run_command(
    controls: CLIControls,
    command: 'operators.Command',
    *,
    namespaces: tuple[str, ...],
    clusterwide: bool,
    peering_name: str | None,
) -> None:
    """Run the command as an operator without handlers."""
    _check_scope(namespaces, clusterwide=clusterwide)
    from kopf._core.reactor import running

    # Use an empty registry: the command must run no handlers, not even those of a calling program.
    registry = registries.SmartOperatorRegistry() if controls.registry is None else controls.registry
    options = _get_options(controls, registry)
    options['namespaces'], options['clusterwide'] = namespaces, clusterwide
    options['peering_name'], options['_command'] = peering_name, command
    with _event_loop(controls) as loop:
        running.run(loop=loop, **options)


def _occupy_standard_streams() -> None:
    """
    Open the null device in place of the standard streams that the parent has closed.

    Otherwise, the first sockets would get their numbers: what is printed would go into them, and libuv, under uvloop,
    aborts the process when it closes one.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one


def launch(controls: CLIControls | None = None) -> None:
    """Run the command line as a program, with the controls for ``kopf run``, if any; always raises `SystemExit`."""
    _occupy_standard_streams()
    # Objects of events have no reference cycles, so they are freed without the collector. With the default thresholds,
    # the collector takes a third of the time of large lists. But handlers and their libraries create cycles: if the
    # collector ran too rarely, these would grow to megabytes that are never returned to the system.
    gc.set_threshold(10_000, 10, 10)
    malloc.release_large_blocks()
    main(prog_name='kopf', obj=controls)
