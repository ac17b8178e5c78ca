// The objects, and which of them are shown.

import { findState, STATES } from './format.js';

const compare = (one, two) => (one < two ? -1 : one > two ? 1 : 0);

export class Store {
  constructor() {
    this.objects = new Map(); // by resource and uid
    this.items = []; // the visible objects, with the headings of their kinds
    this.filters = { text: '', kind: '', namespace: '', states: new Set() };
    this.counts = {};
    this.kinds = [];
    this.namespaces = [];
    this.loaded = false;
  }

  static key(object) { return `${object.resource}/${object.uid}`; }

  /** Replace all objects. */
  load(objects) {
    this.objects = new Map(objects.map((object) => [Store.key(object), this.#prepare(object)]));
    this.loaded = true;
    this.arrange();
  }

  /** Add, replace and remove objects; return whether the list of the visible ones has changed. */
  update({ objects, gone }) {
    let rearranged = this.filters.states.size > 0 || this.filters.text !== '';
    for (const object of objects) {
      const key = Store.key(object);
      const before = this.objects.get(key);
      this.objects.set(key, this.#prepare(object));
      if (before === undefined) rearranged = true;
      else this.#replace(before, object);
    }
    for (const [resource, uids] of Object.entries(gone)) {
      for (const uid of uids) rearranged = this.objects.delete(`${resource}/${uid}`) || rearranged;
    }
    if (rearranged) this.arrange();
    return rearranged;
  }

  /** Show the newer facts in the place of the former ones. */
  #replace(before, object) {
    if (before.item !== undefined) {
      object.item = before.item;
      object.item.object = object;
    }
    if (this.#isCounted(object)) {
      this.counts[before.shown] -= 1;
      this.counts[object.shown] += 1;
    }
  }

  #prepare(object) {
    object.shown = findState(object);
    object.order = `${object.resource} ${object.namespace ?? ''} ${object.name}`;
    return object;
  }

  /** Find the visible objects, by kinds and names. */
  arrange() {
    const { text, kind, namespace, states } = this.filters;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    const kinds = new Map();
    const namespaces = new Set();
    for (const object of this.objects.values()) {
      object.item = undefined;
      kinds.set(object.resource, (kinds.get(object.resource) ?? 0) + 1);
      if (object.namespace) namespaces.add(object.namespace);
      if (kind && object.resource !== kind) continue;
      if (namespace && object.namespace !== namespace) continue;
      if (states.size && !states.has(object.shown)) continue;
      if (words.length) {
        const why = object.error ?? object.awaited ?? '';
        object.words ??= `${object.namespace ?? ''}/${object.name} ${why} ${object.uid}`.toLowerCase();
        if (!words.every((word) => object.words.includes(word))) continue;
      }
      found.push(object);
    }
    found.sort((one, two) => compare(one.order, two.order));
    this.items = [];
    this.visible = found;
    let last = null;
    found.forEach((object, position) => {
      if (object.resource !== last?.title) {
        last = { title: object.resource, count: 0 };
        this.items.push(last);
      }
      last.count += 1;
      object.item = { object, position };
      this.items.push(object.item);
    });
    this.kinds = [...kinds].sort((one, two) => compare(one[0], two[0]));
    this.namespaces = [...namespaces].sort(compare);
    this.#count();
  }

  /** Count the states of the objects that match the other filters. */
  #count() {
    this.counts = Object.fromEntries(Object.keys(STATES).map((state) => [state, 0]));
    for (const object of this.objects.values()) if (this.#isCounted(object)) this.counts[object.shown] += 1;
  }

  #isCounted(object) {
    const { kind, namespace } = this.filters;
    return (!kind || object.resource === kind) && (!namespace || object.namespace === namespace);
  }

  get isFiltered() {
    const { text, kind, namespace, states } = this.filters;
    return Boolean(text || kind || namespace || states.size);
  }
}
