"""The mistakes that new users make, and the one message that each of them gets: it says what to do.

The messages are those of the page "Troubleshooting", literally; "..." stands for what depends on the place. Who adds
a mistake here adds it there, and the other way round.
"""

import contextlib
import io
import logging
import pathlib
import re
import threading
import time

import pytest
from click.testing import CliRunner
from kinds import define
from snippets import find_page

import kopf
from kopf import cli
from kopf.testing import Sandbox

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = " ".join(find_page("troubleshooting").read_text().replace("``", "").split())
CREATE = "@kopf.on.create('kopfexamples')\n"

# What is seen when the file is loaded, or when the operator starts: the message is all there is.
REFUSED = {
    "no parentheses": (
        "@kopf.on.create\ndef fn(spec, **_): pass",
        "@kopf.on.create has no parentheses: write @kopf.on.create('kopfexamples') before the function 'fn' (...).",
    ),
    "no parentheses of an activity": (
        "@kopf.on.startup\ndef fn(**_): pass",
        "@kopf.on.startup has no parentheses: write @kopf.on.startup() before the function 'fn' (...).",
    ),
    "no resource": (
        "@kopf.on.create()\ndef fn(**_): pass",
        "A resource has no name: use any of its names, category=, kopf.EVERYTHING, or a callable.",
    ),
    "slashes in the resource": (
        "@kopf.on.create('kopf.dev/v1/kopfexamples')\ndef fn(**_): pass",
        "No resource can be named 'kopf.dev/v1/kopfexamples'. Put its API group and version before the name: "
        "('kopf.dev/v1', 'kopfexamples').",
    ),
    "unknown option": (
        "@kopf.timer('kopfexamples', intervall=3)\ndef fn(**_): pass",
        "@kopf.on.timer got an unexpected keyword argument 'intervall'. Did you mean interval=? It takes: ...",
    ),
    "wrong option": (
        "@kopf.timer('kopfexamples', interval='3s')\ndef fn(**_): pass",
        "@kopf.on.timer: interval= must be a number, not '3s'.",
    ),
    "a time as a timedelta": (
        "import datetime\n@kopf.on.create('kopfexamples', timeout=datetime.timedelta(minutes=5))\ndef fn(**_): pass",
        "@kopf.on.create: timeout= must be a number, not datetime.timedelta(seconds=300). It is in seconds: use "
        ".total_seconds().",
    ),
    "an option of another decorator": (
        "@kopf.daemon('kopfexamples', interval=5)\ndef fn(**_): pass",
        "@kopf.on.daemon got an unexpected keyword argument 'interval'. interval= is for @kopf.on.reconcile, "
        "@kopf.timer, @kopf.on.schedule. It takes: ...",
    ),
    "a flag as a text": (
        "@kopf.on.delete('kopfexamples', optional='no')\ndef fn(**_): pass",
        "@kopf.on.delete: optional= must be True or False, not 'no'.",
    ),
    "a mode of errors as a text": (
        "@kopf.on.create('kopfexamples', errors='permanent')\ndef fn(**_): pass",
        "@kopf.on.create: errors= must be one of kopf.ErrorsMode, not 'permanent'. There are: "
        "kopf.ErrorsMode.IGNORED, kopf.ErrorsMode.TEMPORARY, kopf.ErrorsMode.PERMANENT.",
    ),
    "a dot before the field": (
        "@kopf.on.field('kopfexamples', field='.spec.field')\ndef fn(**_): pass",
        "@kopf.on.field: field='.spec.field' names no field. Did you mean 'spec.field'?",
    ),
    "a label that is true": (
        "@kopf.on.create('kopfexamples', labels={'app': True})\ndef fn(**_): pass",
        "@kopf.on.create: labels={'app': True} never matches: the values of labels are strings. To ask only whether "
        "there is one, use kopf.PRESENT.",
    ),
    "several resources": (
        "@kopf.on.create(['kopfexamples', 'pods'])\ndef fn(**_): pass",
        "Resources are specified by strings, kopf.EVERYTHING, or callables; got ['kopfexamples', 'pods']. For several "
        "resources, write one decorator above the other.",
    ),
    "a class as a handler": (
        CREATE + "class Handler:\n    def create(self, **_): pass",
        "@kopf.on.create: 'Handler' is a class: a call of it makes an object, and runs no method. Use a function, or "
        "declare the method of an object: kopf.on.create(...)(obj.method)",
    ),
    "a wrapper without keyword arguments": (
        "def logged(fn):\n    return lambda *args: fn(*args)\n" + CREATE + "@logged\ndef fn(**_): pass",
        "takes only *args, but handlers are called with keyword arguments. If it is made by a decorator of yours, let "
        "it take **kwargs, and pass them on.",
    ),
    "no field": (
        "@kopf.on.update('kopfexamples', old=1)\ndef fn(**_): pass",
        "@kopf.on.update: old= has no effect without field=.",
    ),
    "labels that are none": (
        "@kopf.on.create('kopfexamples', labels='a=b')\ndef fn(**_): pass",
        "@kopf.on.create: labels= must be a mapping of names to values, markers, or callbacks, not 'a=b'.",
    ),
    "a misspelt argument": (
        CREATE + "def fn(specs, name): pass",
        "Handler 'fn' (...) asks for 'specs', which it is not given. There is no such argument, and no index of this "
        "name. Did you mean spec? There are: annotations, body, ...",
    ),
    "a wrong argument of a filter": (
        "@kopf.on.create('kopfexamples', when=lambda obj: True)\ndef fn(**_): pass",
        "when= of Handler 'fn' (...) asks for 'obj', which it is not given. The object is in 'body'. Only handlers get "
        "'obj', and only if ...",
    ),
    "an unknown argument of a filter": (
        "@kopf.on.create('kopfexamples', when=lambda thing: True)\ndef fn(**_): pass",
        "when= of Handler 'fn' (...) asks for 'thing', which it is not given. There is no such argument, and no index "
        "of this name. There are: annotations, body, ...",
    ),
    "a filter of labels without their value": (
        "@kopf.on.create('kopfexamples', labels={'a': lambda **_: True})\ndef fn(**_): pass",
        "@kopf.on.create: the function '<lambda>' (...) of labels= takes no value: it is called with the value first, "
        "then with keyword arguments. Add it to the parameters: (value, **_)",
    ),
    "asks for what it is not given": (
        CREATE + "def fn(event, **_): pass",
        "Handler 'fn' (...) asks for 'event', which it is not given. It is given to: @kopf.on.event.",
    ),
    "asks for what there is not": (
        CREATE + "def fn(object, **_): pass",
        "Handler 'fn' (...) asks for 'object', which it is not given. There is no such argument, and no index of this "
        "name. There are: annotations, body, ...",
    ),
    "the id of the last-handled configuration": (
        "@kopf.on.create('kopfexamples', id='last-handled-configuration')\ndef fn(**_): pass",
        "Handler 'last-handled-configuration' (...) would store its progress in the annotation ... of its objects, in "
        "which settings.persistence.diffbase_storage stores the last-handled configuration. Rename the function, or "
        "give it another id=.",
    ),
    "a method": (
        "class A:\n    " + CREATE + "    def fn(self, **_): pass",
        "@kopf.on.create: the function 'A.fn' (...) is a method, and it is not known of which object. Use a function, "
        "or declare the method of an object: kopf.on.create(...)(obj.method)",
    ),
    "a generator": (
        CREATE + "async def fn(**_):\n    yield 1",
        "@kopf.on.create: the function 'fn' (...) has a yield in it, so that a call of it runs nothing. Let it return "
        "instead.",
    ),
    "a decorator without its module": (
        "@kopf.create('kopfexamples')\ndef fn(**_): pass",
        "module 'kopf' has no attribute 'create'. Did you mean kopf.on.create?",
    ),
    "a misspelt decorator": (
        "@kopf.timers('kopfexamples', interval=1)\ndef fn(**_): pass",
        "module 'kopf' has no attribute 'timers'. Did you mean kopf.timer?",
    ),
    "a misspelt group of settings": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.postings.enabled = False",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): AttributeError: "
        "There is no 'postings' in OperatorSettings. Did you mean 'posting'?",
    ),
    "a misspelt setting": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.posting.enable = False",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): AttributeError: "
        "There is no 'enable' in PostingSettings. Did you mean "
        "'enabled'?",
    ),
    "a setting that is no number": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.watching.server_timeout = '10m'",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'server_timeout' in WatchingSettings must be a number, "
        "not '10m'.",
    ),
    "a setting that is no string": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.admission.managed = True",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'managed' in AdmissionSettings must be a string, not True.",
    ),
    "a setting that is a level": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.posting.level = 'WARNING'",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'level' in PostingSettings must be a number, not 'WARNING'. Write logging.WARNING.",
    ),
    "a setting that is true or false": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.posting.enabled = 'false'",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'enabled' in PostingSettings must be True or False, not 'false'.",
    ),
    "a setting that is a list": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.queueing.error_delays = 5",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'error_delays' in QueueingSettings must be a list of numbers, not 5.",
    ),
    "a setting that is a mapping": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.watching.label_selectors = {'pods': 'a=b'}",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'label_selectors' in WatchingSettings is a mapping of resources: set its items, instead of setting it to "
        "{'pods': 'a=b'}.",
    ),
    "a storage as a text": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.persistence.progress_storage = 'annotations'",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'progress_storage' in PersistenceSettings must be a storage, such as kopf.AnnotationsProgressStorage(), not "
        "'annotations'.",
    ),
    "an executor as a number": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.execution.executor = 5",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'executor' in ExecutionSettings must be an executor, such as concurrent.futures.ThreadPoolExecutor(), not "
        "5.",
    ),
    "a finalizer with a space": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.persistence.finalizer = 'my finalizer'",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): ValueError: "
        "'finalizer' in PersistenceSettings cannot be 'my finalizer': it has only letters, digits, '-', '_', and "
        "'.', up to 63, after an optional domain with '/'.",
    ),
    "webhooks with a wrong name": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.admission.managed = 'My Webhooks'",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): ValueError: "
        "'managed' in AdmissionSettings cannot be 'My Webhooks': it is the name of an object, so it has only small "
        "letters, digits, '-', and '.'.",
    ),
    "annotations with a wrong prefix": (
        "@kopf.on.startup()\ndef fn(settings, **_): kopf.AnnotationsProgressStorage(prefix='My Operator')",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): ValueError: "
        "The prefix of annotations cannot be 'My Operator': it is a domain, so it has only letters, digits, '-', and "
        "'.', e.g. prefix='my-operator.example.com'.",
    ),
    "a group of settings": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.watching = {}",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'watching' in OperatorSettings is a group of settings: set them one by one, instead of setting it to {}.",
    ),
    "a class instead of an object": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.admission.server = kopf.WebhookServer",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "'server' in AdmissionSettings must be an object, not a class: write WebhookServer(...).",
    ),
    "a setting that is impossible": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.execution.max_workers = 0",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): ValueError:"
        " At least one thread is needed for sync handlers, so max_workers cannot be 0.",
    ),
    "a port that is no number": (
        "@kopf.on.startup()\ndef fn(settings, **_): settings.admission.server = kopf.WebhookServer(port='8443')",
        "Activity 'fn' failed with an exception and will stop now (it is a mistake in handlers.py:3): TypeError: "
        "WebhookServer: port= must be a number, not '8443'.",
    ),
    "an unknown operation": (
        "@kopf.on.validate('kopfexamples', operation='CREATED')\ndef fn(**_): pass",
        "@kopf.on.validate: there is no operation 'CREATED'; there are: CREATE, UPDATE, DELETE, CONNECT.",
    ),
    "no parentheses of a kind": (
        "@kopf.kind\nclass WebApp:\n    spec: dict",
        "@kopf.kind has no parentheses: write @kopf.kind('example.com/v1') before the class WebApp.",
    ),
    "a function of resources that fails": (
        "@kopf.on.create(lambda resource: resource.nosuch)\ndef fn(**_): pass",
        "The function '<lambda>' (...), which selects the resources of handlers, failed for ... AttributeError: "
        "'Resource' object has no attribute 'nosuch'. It is called with each kopf.Resource of the cluster.",
    ),
    "a webhook without a server": (
        "@kopf.on.validate('kopfexamples')\ndef fn(**_): pass",
        "There are admission handlers (@kopf.on.validate, @kopf.on.mutate) or conversion handlers (@kopf.on.convert), "
        "but no server for them. Set settings.admission.server in a startup handler: for example, to "
        "kopf.WebhookServer() or to kopf.WebhookAutoServer(); see \"Servers\" in the documentation.",
    ),
    "no quotes": (
        "@kopf.on.create(kopfexamples)\ndef fn(**_): pass",
        "If it is the name of a resource, write it as a text: 'kopfexamples'",
    ),
    "a variable that is not set": (
        "import os\nTOKEN = os.environ['API_TOKEN']",
        "Cannot load handlers.py: KeyError: 'API_TOKEN' (...handlers.py:3)",
    ),
    "how to set a variable": (
        "import os\nTOKEN = os.environ['API_TOKEN']",
        "The variable 'API_TOKEN' is not set in the environment: export API_TOKEN=...",
    ),
    "a relative import": (
        "from .utils import helper",
        "A file that is given by its path is in no package. Import the module without the dot; or load the file as a "
        "part of its package: kopf run -m PACKAGE.handlers",
    ),
    "versions of a conversion by their positions": (
        "@kopf.on.convert('kopfexamples', 'v1', 'v2')\ndef fn(**_): pass",
        "The versions go to from_version= and to_version=. (...handlers.py:2)",
    ),
    "a syntax error": (CREATE + "def fn(**_)\n    pass", "Cannot load handlers.py: SyntaxError: expected ':' (...)"),
    "a missing library": (
        "import requestz",
        "Check the spelling of 'requestz', or install the package that has it for ...",
    ),
}

# What is seen while the operator runs.
WARNED = {
    "no handlers": (
        "def fn(**_): pass",
        "There are no handlers in handlers.py: nothing will be handled. Name the files with decorated functions, such "
        "as those with @kopf.on.create(...).",
    ),
    "settings of the file's own": (
        "settings = kopf.OperatorSettings()\nsettings.posting.enabled = False",
        "The settings 'settings' in ... have no effect: the operator has its own ones. Change these in a function with "
        "@kopf.on.startup(), which gets them as the argument settings.",
    ),
    "an unknown kind": (
        "@kopf.on.create('webapps')\ndef fn(**_): pass",
        "Unresolved resources cannot be served (try creating their CRDs): Selector(any_name='webapps')",
    ),
    "a misspelt kind": (
        "@kopf.on.create('KopfExamples')\ndef fn(**_): pass",
        "Unresolved resources cannot be served (try creating their CRDs): Selector(any_name='KopfExamples'). Did you "
        "mean 'kopfexamples'?",
    ),
    "the same id twice": (
        CREATE + "def fn(**_): pass\n" + CREATE + "def fn(**_): pass",
        "Handler 'fn' is declared twice for the same: in ... and in ... Only one of the functions will be called for "
        "an object. Rename one of them, or give it another id=.",
    ),
    "ids that are nearly the same": (
        "@kopf.on.update('kopfexamples', id='fn.a')\n@kopf.on.create('kopfexamples', id='fn/a')\ndef fn(**_): pass",
        "Handler 'fn/a' (...) and Handler 'fn.a' (...) store their progress in the same annotation, ..., so each of "
        "them can be called too often, or not at all. Give one of them an id= that differs in more than '/' and '.'.",
    ),
    "a status that is pruned": (
        "@kopf.on.create('stricts')\ndef fn(**_): return {'url': 'http://...'}",
        "Merge-patching finished with inconsistencies: (...). The schema of Strict does not know status.fn.url, so the "
        "API drops what is put there. Add the fields to the schema in the CRD, or "
        "x-kubernetes-preserve-unknown-fields: true to 'status' there.",
    ),
    "a filter that fails": (
        "@kopf.on.create('kopfexamples', when=lambda spec, **_: spec['nosuch'])\ndef fn(**_): pass",
        "when= of handler 'fn' (handlers.py:2) failed: KeyError: 'nosuch'. The handler is skipped, and is tried again "
        "with the next change.",
    ),
    "a filter of deletions that fails": (
        "@kopf.on.delete('kopfexamples', when=lambda spec, **_: spec['nosuch'])\ndef fn(**_): pass",
        "when= of handler 'fn' (handlers.py:2) failed: KeyError: 'nosuch'. The handler is skipped, and is tried "
        "again with the next change.",
    ),
    "a field with a slash": (
        "@kopf.on.field('kopfexamples', field='spec/field')\ndef fn(**_): pass",
        "Handler 'fn/spec/field' (...) has field='spec/field', which no object has. Did you mean 'spec.field'?",
    ),
    "a field in a list with dots": (
        "@kopf.on.field('kopfexamples', field=['spec.field'])\ndef fn(**_): pass",
        "Handler 'fn/spec.field' (...) has field=('spec.field',), which no object has. The names of a list or a tuple "
        "have no dots between them: use field='spec.field'.",
    ),
    "an error that is not raised": (
        CREATE + "def fn(spec, **_):\n    if 'size' not in spec:\n        kopf.PermanentError('There is no size.')",
        "Handler 'fn' (...) has kopf.PermanentError(...) in line 5, which is not raised, and so does nothing. Write: "
        "raise kopf.PermanentError(...)",
    ),
    "another run that is not returned": (
        "@kopf.on.reconcile('kopfexamples')\ndef fn(**_): kopf.Again(after=60)",
        "Reconciler 'fn' (...) has kopf.Again(...) in line 3, which is not returned, and so does nothing. Write: "
        "return kopf.Again(...)",
    ),
    "a wait without await": (
        "@kopf.daemon('kopfexamples', labels={'no': 'such'})\n"
        "async def fn(stopped, **_):\n    while not stopped:\n        stopped.wait(10)",
        "Daemon 'fn' (...) has stopped.wait(...) in line 5, which is not awaited, and so does nothing. Write: "
        "await stopped.wait(...)",
    ),
    "a patch that is replaced": (
        CREATE + "def fn(patch, **_):\n    patch = {'status': {'phase': 'Ready'}}",
        "Handler 'fn' (...) replaces its argument 'patch' in line 4, which changes nothing. Change what is in it: "
        "patch.status['field'] = ..., or patch.update(...)",
    ),
    "settings that are replaced": (
        "@kopf.on.startup()\ndef fn(settings, **_):\n    settings = kopf.OperatorSettings()",
        "Activity 'fn' (...) replaces its argument 'settings' in line 4, which changes nothing. Change what is in it: "
        "settings.posting.enabled = ...",
    ),
    "a field that the schema lacks": (
        "@kopf.on.field('stricts', field='spec.feild')\ndef fn(**_): pass",
        "Handler 'fn/spec.feild' (...) has field='spec.feild', but the schema in the CRD 'stricts.kopf.dev' has no "
        "such field. Did you mean 'spec.field'?",
    ),
    "a field in a list": (
        "@kopf.on.field('kopfexamples', field='spec.items[0]')\ndef fn(**_): pass",
        "Handler 'fn/spec.items[0]' (...) has field='spec.items[0]', which no object has. Items of lists have no "
        "fields: use the field of the whole list.",
    ),
    "a path in JSON": (
        "@kopf.on.field('kopfexamples', field='$.spec.field')\ndef fn(**_): pass",
        "Handler 'fn/$.spec.field' (...) has field='$.spec.field', which no object has. Write the names with dots "
        "between them, such as 'spec.field'.",
    ),
    "a label with a space": (
        "@kopf.on.create('kopfexamples', labels={'my label': 'x'})\ndef fn(**_): pass",
        "Handler 'fn' (...) has labels={'my label': ...}, which no object has: a key has only letters, digits, '-', "
        "'_', and '.', up to 63, after an optional domain with '/'.",
    ),
    "a value of a label with a slash": (
        "@kopf.on.create('kopfexamples', labels={'image': 'library/nginx'})\ndef fn(**_): pass",
        "Handler 'fn' (...) has labels={'image': 'library/nginx'}, which no object has: a value has only letters, "
        "digits, '-', '_', and '.', up to 63. Texts of other characters are in annotations.",
    ),
    "an annotation as a field": (
        "@kopf.on.field('kopfexamples', field='metadata.annotations.example.com/size')\ndef fn(**_): pass",
        "Handler 'fn/metadata.annotations.example.com/size' (...) has "
        "field='metadata.annotations.example.com/size', which no object has. For names with dots in them, use a "
        "tuple: field=('metadata', 'annotations', 'example.com/size').",
    ),
    "a handler in a function": (
        "@kopf.timer('kopfexamples', interval=0.01)\ndef fn(**_):\n    " + CREATE + "    def sub(**_): pass",
        "Handler 'fn.<locals>.sub' is declared again by the function around it (in ...). Only one of the "
        "declarations will have an effect for an object. Declare it outside of functions; or use "
        "@kopf.subhandler() in a handler.",
    ),
    "a delay that fails": (
        "@kopf.timer('kopfexamples', interval=9, initial_delay=lambda spec, **_: spec['nosuch'])\ndef fn(**_): pass",
        "initial_delay= of timer 'fn' (handlers.py:2) failed: KeyError: 'nosuch'. Timer 'fn' begins at once.",
    ),
    "a patch in an index": (
        "@kopf.index('kopfexamples')\ndef fn(patch, **_): patch.status['seen'] = True",
        "Indexer 'fn' has changed its patch, which has no effect: indexing functions cannot change objects.",
    ),
    "an event about a name": (
        CREATE + "def fn(name, **_): kopf.info(name, reason='Created')",
        "TypeError: Events are posted about bodies of objects, got 'kopf-example-1'. Use the argument body.",
    ),
    "an operator in the file": (
        "import threading\nflag = threading.Event()\nflag.set()\nkopf.run(stop_flag=flag, clusterwide=True)",
        "handlers.py calls kopf.run() or kopf.operator() while it is imported: the operator of the command line begins "
        "when that call has ended. Remove the call, or move it below: if __name__ == '__main__':",
    ),
    "an interval of zero": (
        "@kopf.timer('kopfexamples', interval=0, labels={'no': 'such'})\ndef fn(**_): pass",
        "Timer 'fn' (...) has interval=0, so it is run again and again without a pause. Use an interval in seconds.",
    ),
    "a timer without an interval": (
        "@kopf.timer('kopfexamples')\ndef fn(**_): pass",
        "Timer 'fn' (...) has neither interval= nor idle=, so it is run only once for an object. Add interval= (in "
        "seconds); or use @kopf.on.create and @kopf.on.resume for what is done once.",
    ),
    "an index named as an argument": (
        "@kopf.index('kopfexamples')\ndef name(**_): pass",
        "Indexer 'name' (...) has the name of an argument, so handlers get the index instead of 'name'. Rename the "
        "function, or give it another id=.",
    ),
    "a function of a patch that is none": (
        CREATE + "def fn(patch, **_): patch.fns.append({'op': 'add'})",
        "patch.fns has {'op': 'add'}, which is left out: it must have functions that change the body, such as lambda "
        "body: body['spec']['items'].append('x').",
    ),
    "a function of a patch that fails": (
        CREATE + "def fn(patch, **_):\n    patch.fns.append(lambda body: body['spec']['nosuch'].append(1))",
        "A function in patch.fns has failed (handlers.py:4): KeyError: 'nosuch'. The patch is not applied. It is tried "
        "again less and less often, and as soon as the object changes.",
    ),
    "a path in a patch": (
        CREATE + "def fn(patch, **_): patch['status.phase'] = 'Ready'",
        "The patch has 'status.phase', which is a field of this name at the top of the object. Did you mean "
        "patch.status['phase']?",
    ),
    "a key that an index lacks": (
        "@kopf.index('kopfexamples')\ndef known(name, **_): return name\n" + CREATE + "def fn(known, **_): known['x']",
        "Handler 'fn' failed with an exception and will try again in 60 seconds: KeyError: 'x'",
    ),
    "a child as a text": (
        CREATE + "def fn(**_): kopf.adopt('kind: Pod')",
        "TypeError: Objects of this type are not supported: <class 'str'>. Convert them to dicts.",
    ),
    "a memo without a value": (
        CREATE + "def fn(memo, **_): memo.counter += 1",
        "AttributeError: 'Memo' has no 'counter' yet: set it before, or use .get('counter')",
    ),
    "sub-handlers with the same id": (
        CREATE
        + "async def fn(**_):\n    for key in 1, 2:\n        @kopf.subhandler()\n        def sub(**_): print(key)",
        "Handler 'fn/fn.<locals>.sub' is declared twice in one attempt: in ... Only the first of these functions is "
        "called. Give each an id of its own: @kopf.subhandler(id=...)",
    ),
    "an attribute of a status": (
        CREATE + "def fn(patch, **_): patch.status.phase = 'Ready'",
        "'StatusPatch' object has no attribute 'phase': it is a mapping, use ['phase'] = ...",
    ),
    "an attribute of a specification": (
        CREATE + "def fn(spec, **_): spec.field",
        "'Spec' object has no attribute 'field': it is a mapping, use ['field'] or .get('field')",
    ),
    "a result with a set": (
        CREATE + "def fn(**_): return {'items': {1, 2}}",
        "status.fn.items cannot be stored, and is left out: JSON cannot express this set. Use sorted(...).",
    ),
    "a result of bytes": (
        CREATE + "def fn(**_): return b'text'",
        "status.fn cannot be stored, and is left out: JSON cannot express this bytes. Use .decode(), or base64.",
    ),
    "a result that is no number": (
        CREATE + "def fn(**_): return {'ratio': float('nan')}",
        "status.fn.ratio cannot be stored, and is left out: JSON cannot express this nan.",
    ),
    "a patch that is returned": (
        CREATE + "def fn(patch, **_):\n    patch.status['phase'] = 'Ready'\n    return patch",
        "status.fn.status cannot be stored, and is left out: JSON cannot express this Loop. It contains itself. "
        "If it is the patch: do not return it, it is applied anyway.",
    ),
    "a result that cannot be stored": (
        CREATE + "def fn(**_): return object()",
        "status.fn cannot be stored, and is left out: JSON cannot express this object. Return from handlers, and put "
        "into patches, only dicts with strings as keys, lists, strings, numbers, booleans, None.",
    ),
    "an annotation that is no string": (
        CREATE + "def fn(patch, **_): patch.metadata.annotations['size'] = 5",
        "TypeError: patch.metadata.annotations['size'] must be a string, not 5: use str() or json.dumps().",
    ),
    "labels that are no strings": (
        CREATE + "def fn(patch, **_): patch['metadata'] = {'labels': {'size': 5}}",
        "The API refuses to patch the object: ... Values of labels and annotations must be strings: use str() or "
        "json.dumps().",
    ),
    "a change in place": (
        CREATE + "def fn(spec, **_): spec['field'] = 'x'",
        "Handler 'fn' failed with an exception and will try again in 60 seconds: TypeError: The object cannot be "
        "changed in place: ['spec']['field'] belongs to what was read from the cluster. Change it by the argument "
        "patch: patch.spec['field'] = ..., where None removes it.",
    ),
    "a change in place of a list": (
        CREATE + "def fn(spec, **_): spec['items'].append('x')",
        "Handler 'fn': The object was changed in place: spec.items. By itself, that changes nothing in the cluster, "
        "and it is undone. Use the argument patch; or change a copy (copy.deepcopy) if it is for something else.",
    ),
    "a delay that is no number": (
        CREATE + "def fn(**_): raise kopf.TemporaryError('Later.', delay='5')",
        "Handler 'fn' failed with an exception and will try again in 60 seconds: TypeError: kopf.TemporaryError: "
        "delay= must be a number of seconds, not '5'.",
    ),
    "a blocking call": (
        # The monitor looks twice a second, and late on a busy machine: the call takes much longer than the limit.
        "import time\n@kopf.on.startup()\ndef configure(settings): settings.execution.blocking_limit = 0.2\n"
        + CREATE
        + "async def fn(**_): time.sleep(1.8)",
        "Handler 'fn' has blocked the event loop for ... seconds; nothing else could go on. It was in ... Make it a "
        "function with 'def' instead of 'async def', so that it gets a thread; or run the slow call in a thread by "
        "'await asyncio.to_thread(...)'; or use an async library for it.",
    ),
}

# What is wrong outside of the file.
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: {context}
clusters: [{{name: here, cluster: {{server: "https://127.0.0.1:1"}}}}]
users: [{{name: me, user: {{token: secret}}}}]
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
"""
OUTSIDE = {
    "no such file": (
        ["handler.py"],
        "here",
        "Cannot load handler.py: there is no file ... Check the path and the current directory; "
        "to load a module by its name, use -m.",
    ),
    "a forgotten suffix": (
        ["handlers"],
        "here",
        "Cannot load handlers: there is no file ... Did you mean handlers.py?",
    ),
    "a file with objects": (
        ["obj.yaml"],
        "here",
        "Cannot load obj.yaml: it is not a file of Python. Objects are put into a cluster by kubectl apply -f, and "
        "into the sandbox by --crd and --load.",
    ),
    "crds without a sandbox": (
        ["--crd", "handlers.py", "handlers.py"],
        "here",
        "--crd, --load and --pods are for --sandbox only: nothing is done to a real cluster.",
    ),
    "a wrong name of a peering": (
        ["--peering", "My Peering", "handlers.py"],
        "here",
        "no object can be named 'My Peering': it is the name of an object, so it has only small letters, digits, '-', "
        "and '.'.",
    ),
    "a file as the value of an option": (
        ["--shards", "handlers.py"],
        "here",
        "'handlers.py' is not 'auto'. Write --shards=auto.",
    ),
    "no cluster": (
        ["handlers.py"],
        None,
        "There are no credentials for a cluster. Looked for a kubeconfig in ... and for a service account in "
        "/var/run/secrets/kubernetes.io/serviceaccount. Set $KUBECONFIG, or run in a pod with a service account, or "
        "add a handler with @kopf.on.login(). To try an operator without a cluster: kopf run --sandbox.",
    ),
    "a wrong context": (
        ["handlers.py"],
        "there",
        "The current context 'there' does not exist in ...; there are: 'here'. Choose another one with: kubectl config "
        "use-context NAME",
    ),
    "a cluster that is down": (
        ["handlers.py"],
        "here",
        "No API answers at https://127.0.0.1:1: ... Is the cluster running, and is it the right one? See kubectl "
        "cluster-info. It is tried again for a while.",
    ),
}

STRICT = define(
    "stricts",
    "Strict",
    group="kopf.dev",
    schema={
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"field": {"type": "string"}}},
            "status": {"type": "object"},
        },
    },
)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(crds=ROOT / "examples" / "crd.yaml") as sandbox:
        sandbox.apply(STRICT)
        sandbox.apply(ROOT / "examples" / "obj.yaml")
        meta = {"name": "x", "namespace": "default"}
        sandbox.create({"apiVersion": "kopf.dev/v1", "kind": "Strict", "metadata": meta})
        yield sandbox


def pattern(text):
    """Return what matches the message; "..." stands for anything, in one line."""
    return "[^\n]*".join(re.escape(part.strip(" ")) for part in text.replace(" (...)", " (...").split("..."))


@contextlib.contextmanager
def collected_log():
    stream, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setLevel(logging.WARNING)
    root.addHandler(handler)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run `kopf run` until it ends, or has logged the text; return its exit code, and all warnings and errors."""
    monkeypatch.chdir(tmp_path)

    def run(args, kubeconfig, text=None):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        flag, results = threading.Event(), []
        thread = threading.Thread(
            daemon=True,
            target=lambda: results.append(
                CliRunner().invoke(
                    cli.main,
                    ["run", "-A", "--standalone", "--quiet", "--log-format=plain", *args],
                    obj=cli.CLIControls(stop_flag=flag, registry=kopf.OperatorRegistry()),
                )
            ),
        )
        with collected_log() as log:
            thread.start()
            deadline = time.monotonic() + 60
            while thread.is_alive() and time.monotonic() < deadline:
                if text is not None and re.search(pattern(text), log.getvalue()):
                    break
                time.sleep(0.01)
        flag.set()
        thread.join(60)
        assert results, f"It neither ends nor says what it should:\n{log.getvalue()}"
        return results[0].exit_code, results[0].output

    return run


@pytest.mark.parametrize("code, text", REFUSED.values(), ids=REFUSED)
def test_mistakes_that_are_refused_are_explained(run, sandbox, tmp_path, code, text):
    tmp_path.joinpath("handlers.py").write_text(f"import kopf\n{code}\n")
    exit_code, output = run(["handlers.py"], sandbox.kubeconfig)
    assert exit_code, output
    assert re.search(pattern(text), output), output
    assert re.search(r" \[[a-z-]+\]$", output, re.MULTILINE), output


CODELESS = (
    "Unresolved resources",
    "Handler 'fn' failed with an exception and will try again in 60 seconds: KeyError: 'x'",
)
"""The beginnings of messages without codes: those of upstream kopf, and what the user's own code has raised."""


@pytest.mark.parametrize("code, text", WARNED.values(), ids=WARNED)
def test_mistakes_are_warned_of(run, sandbox, tmp_path, code, text):
    tmp_path.joinpath("handlers.py").write_text(f"import kopf\n{code}\n")
    sandbox.patch("kopfexamples", "kopf-example-1", {"metadata": {"annotations": None}}, namespace="default")
    sandbox.patch("stricts", "x", {"metadata": {"annotations": None}}, namespace="default")
    exit_code, output = run(["handlers.py"], sandbox.kubeconfig, text)
    assert exit_code == 0, output
    found = re.search(pattern(text), output)
    assert found, output
    line = output[found.start() :].partition("\n")[0]
    assert re.search(r"\[[a-z-]+\]$", line) or text.startswith(CODELESS), line
    # Of tracebacks, there are only the user's line and the reason.
    assert output.count("  File ") <= 1


@pytest.mark.parametrize("args, context, text", OUTSIDE.values(), ids=OUTSIDE)
def test_mistakes_outside_of_the_code_are_explained(run, tmp_path, args, context, text):
    tmp_path.joinpath("handlers.py").write_text(f"import kopf\n{CREATE}def fn(**_): pass\n")
    tmp_path.joinpath("obj.yaml").touch()
    kubeconfig = tmp_path / "kubeconfig"
    if context is not None:
        kubeconfig.write_text(KUBECONFIG.format(context=context))
    _, output = run(args, kubeconfig, text)
    assert re.search(pattern(text), output), output
    assert "Traceback" not in output


def test_an_address_without_encryption_is_explained(run, sandbox, tmp_path):
    tmp_path.joinpath("handlers.py").write_text(f"import kopf\n{CREATE}def fn(**_): pass\n")
    kubeconfig = tmp_path / "kubeconfig"
    server = sandbox.url.replace("https:", "http:")
    kubeconfig.write_text(KUBECONFIG.format(context="here").replace("https://127.0.0.1:1", server))
    text = f"No API answers at {server}: ... The address begins with http: is it https? It is tried again for a while."
    _, output = run(["handlers.py"], kubeconfig, text)
    assert re.search(pattern(text), output), output


@pytest.mark.parametrize("text", [row[-1] for table in (REFUSED, WARNED, OUTSIDE) for row in table.values()])
def test_all_messages_are_documented(text):
    assert re.sub(r"\s*\.\.\.\s*", " ... ", text) in re.sub(r"\s*\.\.\.\s*", " ... ", PAGE)
