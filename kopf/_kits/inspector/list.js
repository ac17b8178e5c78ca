// The list of objects: only the visible rows have elements, so it has no limit.

import { describeNext, h, setText, STATES } from './format.js';

const ROW = 46;
const HEADING = 34;
const MARGIN = 8; // rows above and below the visible ones

export class List {
  constructor(box, rows, select) {
    this.box = box;
    this.rows = rows;
    this.select = select;
    this.items = [];
    this.tops = [];
    this.pool = [];
    this.selected = null;
    box.addEventListener('scroll', () => this.schedule(), { passive: true });
    box.addEventListener('keydown', (event) => this.#press(event));
    box.addEventListener('focus', () => this.schedule());
    rows.addEventListener('click', (event) => {
      const row = event.target.closest('[role=option]')?.row;
      if (row) this.select(row.item.object);
    });
    new ResizeObserver(() => this.schedule()).observe(box);
  }

  /** Show these items, and keep the place in the list. */
  show(items, total) {
    this.items = items;
    this.total = total;
    let top = 0;
    this.tops = items.map((item) => {
      const at = top;
      top += item.object ? ROW : HEADING;
      return at;
    });
    this.rows.style.height = `${top}px`;
    this.schedule();
  }

  /** Mark the object as the selected one. */
  mark(key, { scrolls = false } = {}) {
    this.selected = key;
    if (scrolls) this.#reveal(this.#findSelected());
    this.schedule();
  }

  /** Render the list if the content of a visible row differs from what it shows: even a frame without changes costs. */
  refresh() {
    if (this.pool.some((row) => !row.element.hidden && row.content !== this.#describe(row))) this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#render();
    });
  }

  #render() {
    const { scrollTop, clientHeight } = this.box;
    let index = Math.max(0, this.#find(scrollTop) - MARGIN);
    const end = Math.min(this.items.length, this.#find(scrollTop + clientHeight) + MARGIN + 1);
    let active = null;
    let used = 0;
    for (; index < end; index++, used++) {
      const row = (this.pool[used] ??= this.#makeRow());
      this.#fillRow(row, this.items[index], this.tops[index]);
      if (row.isSelected) active = row.element.id;
    }
    for (; used < this.pool.length; used++) this.pool[used].element.hidden = true;
    if (active) this.box.setAttribute('aria-activedescendant', active);
    else this.box.removeAttribute('aria-activedescendant');
  }

  #makeRow() {
    const row = {
      dot: h('i', { class: 'dot' }),
      name: h('span', { class: 'name' }),
      place: h('span', { class: 'place' }),
      state: h('span', { class: 'state' }),
      next: h('span', { class: 'next' }),
    };
    row.element = h('div', { class: 'row', id: `row-${this.pool.length}` },
      row.dot, h('span', { class: 'who' }, row.name, row.place), h('span', { class: 'what' }, row.state, row.next));
    row.element.row = row;
    this.rows.append(row.element);
    return row;
  }

  #fillRow(row, item, top) {
    const { element } = row;
    const object = item.object;
    row.item = item;
    element.hidden = false;
    if (row.top !== top) element.style.transform = `translateY(${top}px)`;
    row.top = top;
    row.isSelected = Boolean(object) && `${object.resource}/${object.uid}` === this.selected;
    const content = this.#describe(row);
    if (row.content === content) return; // attributes that are set once more cost as much as new ones
    row.content = content;
    const kind = object ? `row${row.isSelected ? ' selected' : ''}` : 'row heading';
    if (element.className !== kind) element.className = kind;
    setText(row.name, object ? object.name : item.title);
    setText(row.place, object ? object.namespace ?? 'cluster' : '');
    setText(row.state, object ? STATES[object.shown] : item.count.toLocaleString('en'));
    setText(row.next, object ? describeNext(object) : '');
    if (object) {
      element.dataset.state = object.shown;
      element.setAttribute('role', 'option');
      element.setAttribute('aria-selected', String(row.isSelected));
      element.setAttribute('aria-posinset', item.position + 1);
      element.setAttribute('aria-setsize', this.total);
    } else {
      delete element.dataset.state;
      element.setAttribute('role', 'presentation');
      for (const name of ['aria-selected', 'aria-posinset', 'aria-setsize']) element.removeAttribute(name);
    }
  }

  /** Return all that the row shows. */
  #describe({ item, isSelected }) {
    const { object } = item;
    if (!object) return `${item.title}\n${item.count}`;
    const texts = [object.name, object.namespace ?? '', object.shown, describeNext(object)];
    return [...texts, item.position, this.total, isSelected].join('\n');
  }

  /** Return the index of the item at this height. */
  #find(height) {
    let low = 0;
    let high = this.tops.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= height) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  #findSelected() {
    return this.items.findIndex(({ object }) => object && `${object.resource}/${object.uid}` === this.selected);
  }

  #reveal(index) {
    if (index < 0) return;
    const top = this.tops[index];
    const above = this.items[index - 1]?.title ? HEADING : 0;
    if (top - above < this.box.scrollTop) this.box.scrollTop = top - above;
    else this.box.scrollTop = Math.max(this.box.scrollTop, top + ROW - this.box.clientHeight);
  }

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
    const steps = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity, j: 1, k: -1,
    };
    const step = steps[event.key];
    if (step === undefined || !this.items.length) return;
    event.preventDefault();
    const current = this.#findSelected();
    let index = current < 0 ? (step < 0 ? this.items.length - 1 : 0) : current + step;
    index = Math.min(this.items.length - 1, Math.max(0, index));
    const direction = step < 0 && current >= 0 ? -1 : 1;
    while (this.items[index] && !this.items[index].object) index += direction; // headings cannot be selected
    if (!this.items[index]) index = this.items.findIndex((item) => item.object);
    if (index >= 0) {
      this.select(this.items[index].object);
      this.#reveal(index);
    }
  }
}
