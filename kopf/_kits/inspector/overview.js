// The operator as a whole: what is shown while no object is selected.

import { makeCall } from './detail.js';
import { describeNext, h, makeCardHead, plural, refresh, STATES, whole } from './format.js';

const MAX_SHOWN = 12;

export class Overview {
  constructor(box, select) {
    this.box = box;
    this.select = select;
  }

  open() {
    this.calls = h('section', { class: 'card', 'aria-label': 'Running handlers' });
    this.troubles = h('section', { class: 'card', 'aria-label': 'Needs attention' });
    this.watches = h('section', { class: 'card', 'aria-label': 'Watches' });
    const titles = h('div', {}, h('p', { class: 'path' }, 'The operator'), h('h2', {}, 'Overview'));
    this.box.replaceChildren(h('header', { class: 'head' }, titles), this.calls, this.troubles, this.watches);
  }

  /** Show what the operator does, and which of these objects need attention. */
  update(operator, store) {
    if (!operator) return;
    this.#showCalls(operator, store);
    this.#showTroubles(store);
    this.#showWatches(operator);
  }

  #showCalls({ running, running_total: total }, store) {
    const opened = new Set([...this.calls.querySelectorAll('details[open]')].map((each) => each.dataset.id));
    const shown = running.slice(0, MAX_SHOWN);
    const facts = shown.map(({ handler, object, retry, seconds, place }) => (
      [handler, object?.uid, retry, Math.floor(seconds), place]));
    refresh(this.calls, JSON.stringify([facts, total]), () => [
      makeCardHead('Running handlers', total ? `${plural(total, 'handler')}, the longest first` : ''),
      ...shown.map((call) => makeCall(call, { opened, link: this.#makeLink(call.object, store) })),
      total ? '' : h('p', { class: 'hint' }, 'No handler runs at this moment.'),
    ]);
  }

  #makeLink(object, store) {
    const known = object && store.objects.get(`${object.resource}/${object.uid}`);
    return known ? this.#makeButton(known) : h('span', { class: 'quiet' }, object ? nameOf(object) : '');
  }

  #makeButton(object) {
    return h('button', { type: 'button', class: 'link', click: () => this.select(object) }, nameOf(object));
  }

  #showTroubles(store) {
    const found = [];
    for (const object of store.objects.values()) {
      if (object.shown === 'failing' || object.shown === 'throttled') found.push(object);
    }
    const shown = found.slice(0, MAX_SHOWN);
    const hint = found.length > MAX_SHOWN ? `${MAX_SHOWN} of ${found.length.toLocaleString('en')}` : '';
    const facts = shown.map((object) => [object.uid, object.shown, object.error, describeNext(object)]);
    refresh(this.troubles, JSON.stringify([found.length, facts]), () => [
      makeCardHead('Needs attention', hint),
      found.length
        ? h('ul', { class: 'troubles' }, shown.map((object) => this.#makeTrouble(object)))
        : h('p', { class: 'hint' }, 'No object is failing or throttled.'),
    ]);
  }

  #makeTrouble(object) {
    return h('li', {},
      h('span', { class: 'badge', 'data-state': object.shown }, STATES[object.shown]),
      this.#makeButton(object),
      h('span', { class: 'reason' }, object.failed ? [h('code', {}, object.failed), ' '] : '', object.error ?? ''),
      h('span', { class: 'next' }, describeNext(object)));
  }

  #showWatches({ watches }) {
    const key = JSON.stringify(watches.map((watch) => ({ ...watch, silent: Math.floor(watch.silent) })));
    refresh(this.watches, key, () => [
      makeCardHead('Watches'),
      watches.length ? makeWatches(watches) : h('p', { class: 'hint' }, 'The operator watches nothing yet.'),
    ]);
  }
}

const nameOf = (object) => `${object.namespace ? `${object.namespace}/` : ''}${object.name}`;

function makeWatches(watches) {
  const titles = ['Resource', 'Namespace', 'State', 'Objects', 'Last news'];
  return h('div', { class: 'scroller', tabindex: 0 }, h('table', {},
    h('thead', {}, h('tr', {}, titles.map((title) => h('th', { scope: 'col' }, title)))),
    h('tbody', {}, watches.map(makeWatch))));
}

function makeWatch(watch) {
  const state = watch.paused ? `${watch.state}, paused` : watch.state;
  return h('tr', {},
    h('td', {}, h('b', {}, watch.resource)),
    h('td', {}, watch.namespace ?? 'all'),
    h('td', {},
      h('span', { class: `watch ${watch.failure ? 'bad' : watch.state}` }, state),
      watch.failure ? h('p', { class: 'message' }, watch.failure) : ''),
    h('td', { class: 'number' }, watch.objects.toLocaleString('en')),
    h('td', { class: 'number' }, watch.silent < 1 ? 'now' : `${whole(watch.silent)} ago`));
}
