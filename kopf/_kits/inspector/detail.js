// One object: its state, what runs, its timeline, its diff.

import { load } from './client.js';
import {
  clock, describeNext, duration, h, makeCardHead, plural, refresh, s, setText, shortPath, STATES, timeOfDay,
} from './format.js';
import { drawTimeline, isMoving } from './timeline.js';

const TYPES = {
  cause: 'Causes', handler: 'Handlers', patch: 'Patches', event: 'Events', log: 'Log', framework: 'Framework’s log',
};
const TAGS = { wait: 'pause', event: 'Event' };
const RANGES = { All: 0, '5 min': 300, '1 min': 60 };
const MAX_INLINE = 4; // the fields of a patch that are shown at once

export class Detail {
  constructor(box) {
    this.box = box;
    this.hiddenTypes = new Set(['framework']);
    this.range = 0;
    this.object = null;
    new ResizeObserver(() => this.object && this.#draw()).observe(box);
  }

  /** Show this object from now on. */
  open(object) {
    this.object = object;
    this.entries = new Map();
    this.lines = new Map();
    this.number = 0;
    this.diff = null;
    this.running = [];
    this.isGone = false;
    this.#build();
    this.#update();
    this.box.scrollTop = 0;
    return this.reload();
  }

  close() { this.object = null; }

  /** Request the news of the object; calls that come meanwhile are one more request. */
  async reload() {
    if (this.loading) {
      this.stale = true;
      return;
    }
    this.loading = true;
    try {
      do {
        this.stale = false;
        const { object } = this;
        if (object === null) return;
        const story = await load(`/v1/timeline?uid=${encodeURIComponent(object.uid)}&after=${this.number}`);
        if (this.object === null || this.object.uid !== object.uid) this.stale = this.object !== null;
        else this.#take(story);
      } while (this.stale);
    } catch { /* it is disconnected, and the page says so; the next connection reloads it */ } finally {
      this.loading = false;
    }
  }

  /** Called when all is to be requested anew, with the new state of the object: the operator can be another one. */
  restart(object) {
    const { object: before } = this;
    if (before) return this.open(object ?? before);
  }

  /** Called with the new state of the object; without one if the object is gone. */
  change(object) {
    this.isGone = object === undefined;
    if (object) this.object = object;
    this.#update();
    return this.reload();
  }

  /** Called once a second: times go on, and stacks can have changed. */
  tick() {
    if (!this.object) return;
    this.#updateHead();
    const entries = this.#shownEntries();
    if (isMoving(entries, this.object)) this.#draw();
    for (const entry of entries) if (entry.type !== 'log' && !entry.outcome && entry.handler) this.#fillLine(entry);
    if (this.running.length) this.reload();
  }

  #take(story) {
    clock.adjust(story.time);
    if (story.number < this.number) { // another operator, after a restart
      this.number = 0;
      this.entries.clear();
      this.stale = true;
      return;
    }
    for (const entry of story.entries) this.entries.set(entry.id, entry);
    this.number = story.number;
    this.diff = story.diff;
    this.running = story.running;
    this.isLoaded = true;
    this.#update();
  }

  #shownEntries() {
    return [...this.entries.values()].filter((entry) => {
      const type = findType(entry);
      return !this.hiddenTypes.has(type) && !(type === 'framework' && this.hiddenTypes.has('log'));
    }).sort((one, two) => one.id - two.id);
  }

  #build() {
    this.title = h('h2', { tabindex: -1 });
    this.path = h('p', { class: 'path' });
    this.badge = h('span', { class: 'badge' });
    this.next = h('span', { class: 'next' });
    this.error = h('p', { class: 'error', hidden: true });
    this.awaited = h('p', { class: 'awaited', hidden: true });
    this.calls = h('div', { class: 'calls' });
    this.svg = s('svg', { class: 'timeline', role: 'img' });
    this.list = h('ol', { class: 'entries' });
    this.noEntries = h('p', { class: 'hint' });
    this.diffBox = h('div', { class: 'diff' });
    this.box.replaceChildren(
      h('header', { class: 'head' },
        h('div', {}, this.path, this.title),
        h('p', { class: 'status' }, this.badge, this.next)),
      this.error,
      this.awaited,
      this.calls,
      h('section', { class: 'card', 'aria-label': 'Timeline' },
        makeCardHead('Timeline', '', this.#makeTypes(), this.#makeRanges()),
        h('div', { class: 'drawing' }, this.svg),
        this.#makeLegend()),
      h('div', { class: 'columns' },
        h('section', { class: 'card', 'aria-label': 'What happened' },
          makeCardHead('What happened', 'newest first'), this.noEntries, this.list),
        h('section', { class: 'card', 'aria-label': 'Last diff' }, this.diffBox)));
  }

  #makeTypes() {
    const titles = Object.entries(TYPES);
    return h('div', { class: 'chips', role: 'group', 'aria-label': 'Shown types' }, titles.map(([type, title]) =>
      h('button', {
        type: 'button', class: 'chip', 'aria-pressed': String(!this.hiddenTypes.has(type)),
        click: (event) => {
          if (!this.hiddenTypes.delete(type)) this.hiddenTypes.add(type);
          event.currentTarget.setAttribute('aria-pressed', String(!this.hiddenTypes.has(type)));
          this.#update();
        },
      }, title)));
  }

  #makeRanges() {
    const ranges = Object.entries(RANGES);
    const attributes = { class: 'segments', role: 'group', 'aria-label': 'Time range' };
    const group = h('div', attributes, ranges.map(([title, range]) =>
      h('button', {
        type: 'button', 'aria-pressed': String(this.range === range),
        click: (event) => {
          this.range = range;
          for (const button of group.children) {
            button.setAttribute('aria-pressed', String(button === event.currentTarget));
          }
          this.#draw();
        },
      }, title)));
    return group;
  }

  #makeLegend() {
    const marks = { succeeded: 'succeeded', retried: 'retried', failed: 'failed', running: 'running' };
    return h('p', { class: 'legend', 'aria-hidden': 'true' }, Object.entries(marks).map(([name, title]) =>
      h('span', {}, h('i', { class: name }), title)));
  }

  #update() {
    this.#updateHead();
    this.#updateCalls();
    this.#draw();
    this.#updateList();
    this.#updateDiff();
  }

  #updateHead() {
    const { object } = this;
    const place = `${object.resource}${object.namespace ? ` · ${object.namespace}` : ''}`;
    setText(this.path, place);
    setText(this.title, object.name);
    this.badge.dataset.state = this.isGone ? 'gone' : object.shown;
    setText(this.badge, this.isGone ? 'deleted' : STATES[object.shown]);
    setText(this.next, this.isGone ? '' : describeNext(object));
    this.error.hidden = !object.error || this.isGone;
    const make = () => [object.failed ? h('b', {}, `${object.failed}: `) : '', object.error ?? ''];
    refresh(this.error, `${object.failed} ${object.error}`, make);
    this.awaited.hidden = !object.awaited || this.isGone;
    setText(this.awaited, object.awaited ?? '');
  }

  #updateCalls() {
    const opened = new Set([...this.calls.querySelectorAll('details[open]')].map((each) => each.dataset.id));
    this.calls.replaceChildren(...this.running.map((call) => makeCall(call, { opened })));
  }

  #draw() {
    const entries = this.#shownEntries();
    const count = plural(entries.length, 'entry', 'entries');
    this.svg.setAttribute('aria-label', `Timeline of ${count}; the same as in the list What happened`);
    this.svg.toggleAttribute('hidden', entries.length === 0);
    const pick = (entry) => this.#pick(entry);
    if (entries.length) drawTimeline(this.svg, entries, this.object, { range: this.range, pick });
  }

  #pick(entry) {
    const line = this.lines.get(entry.id);
    if (!line) return;
    const isStill = matchMedia('(prefers-reduced-motion: reduce)').matches;
    line.scrollIntoView({ block: 'center', behavior: isStill ? 'auto' : 'smooth' });
    line.classList.remove('picked');
    requestAnimationFrame(() => line.classList.add('picked'));
  }

  #updateList() {
    const entries = this.#shownEntries();
    setText(this.noEntries, entries.length ? '' : this.#explainAbsence());
    const ids = new Set(entries.map((entry) => entry.id));
    for (const [id, line] of this.lines) {
      if (!ids.has(id)) {
        line.remove();
        this.lines.delete(id);
      }
    }
    let after = null; // the newest entry is the first one
    for (const entry of entries) {
      const line = this.#fillLine(entry);
      if (line.nextSibling !== after || line.parentNode !== this.list) this.list.insertBefore(line, after);
      after = line;
    }
  }

  #explainAbsence() {
    if (this.entries.size) return 'Nothing of the chosen types.';
    return this.isLoaded ? 'Nothing has happened since the operator has started, or it is forgotten.' : '';
  }

  #fillLine(entry) {
    let line = this.lines.get(entry.id);
    if (!line) this.lines.set(entry.id, (line = h('li', { class: 'entry' })));
    const running = entry.handler && !entry.outcome;
    refresh(line, JSON.stringify(entry) + (running ? Math.floor(clock.now()) : ''), () => makeLine(entry));
    return line;
  }

  #updateDiff() {
    refresh(this.diffBox, JSON.stringify(this.diff), () => makeDiff(this.diff));
  }
}

/** Return the type by which the entry is shown or hidden: a key of TYPES. */
function findType(entry) {
  if (entry.type === 'log' && entry.framework) return 'framework';
  return { frequent: 'handler', wait: 'cause' }[entry.type] ?? entry.type;
}

function makeLine(entry) {
  const type = entry.type === 'frequent' ? 'handler' : entry.type;
  const outcome = entry.outcome ?? (entry.handler ? 'running' : '');
  const took = entry.handler ? duration(entry.seconds ?? Math.max(0, clock.now() - entry.at)) : '';
  return [
    h('time', { title: new Date(entry.at * 1000).toISOString() }, timeOfDay(entry.at, true)),
    h('span', { class: `tag ${type} ${outcome} ${entry.level ?? ''}` }, TAGS[type] ?? type),
    h('div', { class: 'text' }, makeText(entry)),
    h('span', { class: 'took' }, took),
  ];
}

function makeText(entry) {
  switch (entry.type) {
    case 'handler':
    case 'frequent':
      return makeCallText(entry);
    case 'cause':
      return [
        h('b', {}, entry.reason), ' ',
        h('span', { class: 'quiet' }, entry.event ? entry.event.toLowerCase() : 'next step'), ' → ',
        entry.handlers.flatMap((id, number) => [number ? ', ' : '', h('code', {}, id)]),
      ];
    case 'patch':
      return [
        makeStatus(entry),
        entry.target ? [` ${entry.method} `, h('code', {}, entry.target)] : ' ',
        makeFields(entry.fields),
      ];
    case 'event':
      return [h('b', {}, entry.reason), entry.times > 1 ? ` ×${entry.times}` : '', ' ', entry.message];
    case 'wait':
      return [`throttled for ${duration(entry.delay)} after an unexpected error`];
    default:
      return [
        entry.level === 'INFO' ? '' : [h('b', { class: `level ${entry.level}` }, entry.level), ' '],
        entry.message,
        entry.traceback ? makeDetails('Traceback', h('pre', { tabindex: 0 }, entry.traceback)) : '',
      ];
  }
}

function makeCallText(entry) {
  const outcomes = {
    retried: entry.delay ? `retried after ${duration(entry.delay)}` : 'retried',
    waiting: entry.message ? 'waits for another object' : 'waits for its parts',
    refused: 'refused the request',
  };
  const outcome = entry.outcome ?? 'running';
  return [
    h('code', {}, entry.handler),
    entry.kind === 'Handler' ? '' : ` ${entry.kind.toLowerCase()}`,
    entry.retry ? ` attempt ${entry.retry + 1} ` : ' ',
    h('b', { class: `outcome ${outcome}` }, outcomes[outcome] ?? outcome),
    entry.message ? h('p', { class: 'message' }, entry.message) : '',
  ];
}

function makeDetails(title, content, attributes = {}) {
  return h('details', attributes, h('summary', {}, title), content);
}

function makeStatus(entry) {
  const isFine = entry.status && entry.status < 300;
  return h('span', { class: `http ${isFine ? 'fine' : 'bad'}` }, String(entry.status ?? 'no answer'));
}

function makeFields(fields) {
  const make = (part) => h('span', { class: 'fields' },
    part.map((field) => h('code', { class: 'field', title: field }, field)));
  if (!fields.length) return '';
  const rest = fields.slice(MAX_INLINE);
  const more = rest.length ? makeDetails(plural(rest.length, 'more field'), make(rest)) : '';
  return [make(fields.slice(0, MAX_INLINE)), more];
}

function makeDiff(diff) {
  const head = makeCardHead('Last diff', diff?.reason);
  if (!diff) return [head, h('p', { class: 'hint' }, 'No handler has got a diff of this object yet.')];
  const left = diff.total - diff.fields.length;
  return [
    head,
    h('dl', { class: 'changes' }, diff.fields.map((each) => [
      h('dt', {}, h('code', {}, each.field || 'the whole object')),
      makeValue('old', 'before: ', each.old),
      makeValue('new', 'after: ', each.new),
    ])),
    left ? h('p', { class: 'hint' }, `and ${plural(left, 'more field')}`) : '',
  ];
}

function makeValue(name, spoken, value) {
  if (value === null) return '';
  return h('dd', { class: name }, h('span', { class: 'hidden' }, spoken), h('code', {}, pretty(value)));
}

function pretty(text) {
  if (text.length < 32) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch { // a text that was cut
    return text;
  }
}

/** Return what a running handler does, with its place in the code. */
export function makeCall(call, { opened = new Set(), link = null } = {}) {
  const id = `${call.handler} ${call.object?.uid ?? ''}`;
  const marks = [
    call.blocking ? h('span', { class: 'mark-bad' }, 'blocks the event loop') : '',
    call.stopping ? h('span', { class: 'mark-bad' }, 'does not stop') : '',
    call.retry ? h('span', { class: 'mark-soft' }, `attempt ${call.retry + 1}`) : '',
    call.thread ? h('span', { class: 'mark-soft' }, `in thread ${call.thread}`) : '',
  ];
  return h('article', { class: `call-card${call.blocking || call.stopping ? ' bad' : ''}` },
    h('header', {},
      h('span', { class: 'spin', 'aria-hidden': 'true' }),
      h('b', {}, call.handler),
      h('span', { class: 'quiet' }, call.kind.toLowerCase()),
      marks,
      link,
      h('span', { class: 'elapsed' }, duration(call.seconds))),
    call.place ? makePlace(call.place) : h('p', { class: 'hint' }, 'Its stack cannot be read at this moment.'),
    call.stack.length > 1 ? makeDetails(`Stack: ${plural(call.stack.length, 'call')}`, makeStack(call.stack),
      { 'data-id': id, open: opened.has(id) }) : '');
}

function makePlace(place) {
  return h('div', { class: 'code' },
    h('p', { class: 'where', title: place.file }, h('b', {}, shortPath(place)), ` in ${place.function}`),
    h('pre', { tabindex: 0 }, place.code));
}

function makeStack(stack) {
  return h('ol', { class: 'stack' }, stack.map((each) => h('li', {},
    h('span', { title: each.file }, `${shortPath(each)} in ${each.function}`),
    h('code', {}, each.code))));
}
