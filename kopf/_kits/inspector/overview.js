// The operator as a whole: what is shown while no object is selected.

import { makeCall } from './detail.js';
import { describeNext, h, plural, refresh, STATES, whole } from './format.js';

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
    this.box.replaceChildren(h('header', { class: 'head' }, h('div', {}, h('p', { class: 'path' }, 'The operator'), h('h2', {}, 'Overview'))), this.calls, this.troubles, this.watches);
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
    const key = JSON.stringify([shown.map((call) => [call.handler, call.object?.uid, call.retry, Math.floor(call.seconds), call.place]), total]);
    refresh(this.calls, key, () => [
      h('div', { class: 'card-head' }, h('h3', {}, 'Running handlers'), h('span', { class: 'hint' }, total ? `${plural(total, 'handler')}, the longest first` : '')),
      ...shown.map((call) => makeCall(call, { opened, link: this.#makeLink(call.object, store) })),
      total ? '' : h('p', { class: 'hint' }, 'No handler runs at this moment.'),
    ]);
  }

  #makeLink(object, store) {
    const known = object && store.objects.get(`${object.resource}/${object.uid}`);
    const text = object ? `${object.namespace ? `${object.namespace}/` : ''}${object.name}` : '';
    return known ? h('button', { type: 'button', class: 'link', click: () => this.select(known) }, text) : h('span', { class: 'quiet' }, text);
  }

  #showTroubles(store) {
    const found = [];
    for (const object of store.objects.values()) {
      if (object.shown === 'failing' || object.shown === 'throttled') found.push(object);
    }
    const shown = found.slice(0, MAX_SHOWN);
    const key = JSON.stringify([found.length, shown.map((object) => [object.uid, object.shown, object.error, describeNext(object)])]);
    refresh(this.troubles, key, () => [
      h('div', { class: 'card-head' }, h('h3', {}, 'Needs attention'), h('span', { class: 'hint' }, found.length > MAX_SHOWN ? `${MAX_SHOWN} of ${found.length.toLocaleString('en')}` : '')),
      found.length ? h('ul', { class: 'troubles' }, shown.map((object) => h('li', {},
        h('span', { class: 'badge', 'data-state': object.shown }, STATES[object.shown]),
        h('button', { type: 'button', class: 'link', click: () => this.select(object) }, `${object.namespace ? `${object.namespace}/` : ''}${object.name}`),
        h('span', { class: 'reason' }, object.failed ? [h('code', {}, object.failed), ' '] : '', object.error ?? ''),
        h('span', { class: 'next' }, describeNext(object))))) : h('p', { class: 'hint' }, 'No object is failing or throttled.'),
    ]);
  }

  #showWatches({ watches }) {
    refresh(this.watches, JSON.stringify(watches.map((watch) => [watch.resource, watch.namespace, watch.state, watch.objects, watch.failure, watch.paused, Math.floor(watch.silent)])), () => [
      h('div', { class: 'card-head' }, h('h3', {}, 'Watches')),
      watches.length ? h('div', { class: 'scroller', tabindex: 0 }, h('table', {},
        h('thead', {}, h('tr', {}, ['Resource', 'Namespace', 'State', 'Objects', 'Last news'].map((title) => h('th', { scope: 'col' }, title)))),
        h('tbody', {}, watches.map((watch) => h('tr', {},
          h('td', {}, h('b', {}, watch.resource)),
          h('td', {}, watch.namespace ?? 'all'),
          h('td', {}, h('span', { class: `watch ${watch.failure ? 'bad' : watch.state}` }, watch.paused ? `${watch.state}, paused` : watch.state), watch.failure ? h('p', { class: 'message' }, watch.failure) : ''),
          h('td', { class: 'number' }, watch.objects.toLocaleString('en')),
          h('td', { class: 'number' }, watch.silent < 1 ? 'now' : `${whole(watch.silent)} ago`)))))) : h('p', { class: 'hint' }, 'The operator watches nothing yet.'),
    ]);
  }
}
