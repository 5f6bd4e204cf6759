// SPDX-License-Identifier: Apache-2.0
//
// Player: the step player. It puts caption, controls and cards together, and listens to keys.

class Player {
  constructor(root) {
    this.root = root;
    this.cards = new CardGrid();
    this.build();
    store.on({
      run: () => this.build(),
      time: () => this.draw(),
      play: () => {
        this.showPlaying();
        this.draw();
      },
      pace: () => this.layout(),
    });
    darkTheme.addEventListener('change', () => {
      this.cards.recolor();
      this.draw();
    });
    onWidth(root, () => this.layout());
    document.addEventListener('keydown', (event) => this.key(event));
  }

  build() {
    const {step} = store;
    showPlayerLegend(() => this.build());
    if (!step) {
      this.box = null;
      this.place(ran(store.run) ? unrecorded(store.run) : misfit(store.run));
      return;
    }
    this.cards.build(this.subjects());
    this.caption = new CaptionPanel(step);
    const attributes = {
      class: 'panel player',
      tabindex: 0,
      role: 'group',
      'aria-label': 'Step player. Space plays, arrow keys step.',
    };
    this.box =
        el('div', attributes, this.caption.element, this.makeControls(), this.cards.element,
           this.makeKeys());
    this.place(this.box);
    this.cards.recolor();
    this.showPlaying();
    this.layout();
  }

  place(element) {
    this.root.replaceChildren(...present([failureNote(store.run), element]));
  }

  subjects() {
    const {step, rank} = store;
    if (!store.acrossRuns) return step.ranks.map((r) => ({step, rank: r, name: `Device ${r}`}));
    return runs.filter((run) => run.step)
        .map((run) => ({step: stepOf(run), rank: Math.min(rank, run.world - 1), name: run.label}));
  }

  makeControls() {
    const icon = (d) =>
        svg('svg', {width: 14, height: 14, viewBox: '0 0 14 14', 'aria-hidden': 'true'},
            svg('path', {d}));
    const button = (label, d, onclick, more = '') =>
        el('button',
           {type: 'button', class: 'button ' + more, 'aria-label': label, title: label, onclick},
           icon(d));
    this.playButton = button('Play', '', () => store.play(!store.playing), 'play');
    this.range = el('input', {
      type: 'range',
      min: 0,
      max: 10000,
      step: 1,
      'aria-label': 'Position in the step',
      oninput: () => {
        store.play(false);
        store.seek(this.range.value / 10000);
      },
      onchange: () => store.remember(),
    });
    this.strip = svg('svg', {width: '100%', height: 34, 'aria-hidden': 'true'});
    const speed = select('Speed', [0.5, 1, 2, 4].map((v) => [v, v + '×']), store.speed, (value) => {
      store.speed = Number(value);
    });
    const pace = select(
        'Pace', [['story', 'story pace'], ['true', 'true pace']], store.trueTime ? 'true' : 'story',
        (value) => store.setPace(value === 'true'));
    pace.title = 'Story pace gives short events more room; true pace is to scale';
    return el(
        'div', {class: 'controls'},
        el('div', {class: 'buttons'}, this.playButton,
           button('Previous moment', 'M11 2v10L4 7zM2 2h1.6v10H2z', () => store.jump(-1)),
           button('Next moment', 'M3 2v10l7-5zM10.4 2H12v10h-1.6z', () => store.jump(1))),
        el('div', {class: 'scrub'}, this.strip, this.range),
        el('div', {class: 'buttons'}, speed, pace));
  }

  makeKeys() {
    const {step} = store;
    const words = store.acrossRuns ?
        `Device ${store.rank} of every run, each as far into its own forward, backward or step. ` +
            'Click a card to read about its run.' :
        (step.world > 1 ?
             'In a memory bar gathered units and gradient buckets count as communication buffers ' +
                 '(light blue). ' :
             '') +
            'The tick on a memory bar is the peak of the step; a full bar is ' +
            (capacityInSight ? 'the capacity.' :
                               'a little more than the highest peak of all runs.');
    const keys = (...names) => names.map((name) => el('kbd', {}, name));
    return el(
        'div', {class: 'keys tiny muted'}, el('span', {}, words),
        el('span', {class: 'no-keys'}, ...keys('Space'), ' play  ', ...keys('←', '→'), ' step  ',
           ...keys('Home', 'End'), '  ', ...keys('[', ']'), ' run'));
  }

  showPlaying() {
    if (!this.box) return;
    const label = store.playing ? 'Pause' : 'Play';
    const shape = store.playing ? 'M3 2h3v10H3zM8 2h3v10H8z' : 'M3 1.5v11l9-5.5z';
    this.playButton.querySelector('path').setAttribute('d', shape);
    this.playButton.setAttribute('aria-label', label);
    this.playButton.title = label;
  }

  layout() {
    if (!this.box) return;
    this.cards.layout();
    const width = this.strip.clientWidth;
    const bar = (x, length, name) =>
        svg('rect',
            {x, y: 21, width: Math.max(1, length), height: 4, rx: 2, style: `fill:${color(name)}`});
    this.strip.replaceChildren();
    const scale = {x: (t) => store.positionOf(t) * width};
    for (const {begin, end} of store.step.phases) {
      this.strip.append(bar(scale.x(begin) + 1, scale.x(end) - scale.x(begin) - 2, 'line'));
    }
    for (const {words, x, align} of phaseNames(store.step, scale, width)) {
      const anchor = align === 'right' ? 'end' : 'start';
      this.strip.append(svg('text', {x: x - 2, y: 11, 'text-anchor': anchor}, words));
    }
    this.done = bar(1, 0, 'ink');
    this.strip.append(this.done);
    this.draw();
  }

  draw() {
    if (!this.box) return;
    const lead = store.lead();
    this.cards.draw();
    this.caption.show(lead);
    this.range.value = Math.round(store.s * 10000);
    this.range.setAttribute('aria-valuetext', `${milliseconds(store.t)}, ${opTitle(lead)}`);
    this.done?.setAttribute('width', Math.max(0, store.s * this.strip.clientWidth - 2));
  }

  key(event) {
    const at = document.activeElement;
    const here = at === document.body || this.box?.contains(at) || at?.classList.contains('chart');
    if (!here || event.ctrlKey || event.metaKey || event.altKey || at?.tagName === 'SELECT') return;
    const select = (direction) => {
      const next = runs[runs.indexOf(store.run) + direction];
      if (next) store.select(next.id);
    };
    if (event.key === '[' || event.key === ']') return select(event.key === '[' ? -1 : 1);
    if (!store.step) return;
    const move = (s) => {
      store.play(false);
      store.seek(s);
      store.remember();
    };
    const arrow = (direction) =>
        event.shiftKey ? move(store.s + direction * 0.005) : store.jump(direction);
    const actions = {
      ' ': at?.tagName === 'BUTTON' ? null : () => store.play(!store.playing),
      ArrowRight: () => arrow(1),
      ArrowLeft: () => arrow(-1),
      Home: at === document.body ? null : () => move(0),
      End: at === document.body ? null : () => move(1),
    };
    if (!actions[event.key]) return;
    actions[event.key]();
    event.preventDefault();
  }
}
