// SPDX-License-Identifier: Apache-2.0
//
// The state that all sections share: which run, which moment. A section says with `on` what it does
// when the run, the time, or playing changes. `s` is the position on the slider, from 0 to 1.

const store = {
  run: runs.find((run) => ran(run) && run.stage === 2 && run.step) ??
      runs.find((run) => run.step) ?? runs[0],
  s: 0,
  focus: null,  // the op that an arrow key went to; it stays in the caption until time moves
  playing: false,
  rank: 0,  // the device of the memory chart and of "all stages"
  speed: 1,
  trueTime: false,    // else the story's pace
  acrossRuns: false,  // one device of every run instead of all devices of one
  views: [],

  get step() {
    return stepOf(this.run);
  },
  get t() {
    return this.step ? this.timeAt(this.s) : 0;
  },
  timeAt(s) {
    return this.trueTime ? s * this.step.duration : this.step.story.time(s);
  },
  positionOf(t) {
    return this.trueTime ? t / this.step.duration : this.step.story.position(t);
  },

  on(view) {
    this.views.push(view);
  },
  emit(what) {
    for (const view of this.views) view[what]?.();
  },

  // Keeps the point in forward, backward or step.
  select(id) {
    const next = runs.find((run) => run.id === id);
    if (!next || next === this.run) return;
    const from = this.step;
    const t = this.t;
    this.run = next;
    this.focus = null;
    this.rank = Math.min(this.rank, next.world - 1);
    if (!this.step) this.playing = false;
    if (from && this.step) this.s = this.positionOf(samePoint(from, t, this.step));
    this.emit('run');
    this.emit('time');
    this.remember();
  },
  seek(s, focus = null) {
    this.s = clamp(s, 0, 1);
    this.focus = focus;
    this.emit('time');
  },
  setPace(trueTime) {
    const t = this.t;
    this.trueTime = trueTime;
    this.emit('pace');
    this.seek(this.positionOf(t));
  },

  // The op that the caption is about: a collective while its slices set out, or else what most
  // devices compute, or wait in, or what ended last.
  lead() {
    if (this.focus) return this.focus;
    const {step, t} = this;
    const setsOut = (op) => op.isCollective && op.unit >= 0 && step.progress(op, t) < 0.6;
    const later = (a, b) => a && a.begin > b.begin ? a : b;
    let collective = null;
    let last = null;
    for (const op of step.recorded) {
      if (op.begin > t) continue;
      last = later(last, op);
      if (t < op.end && t >= op.allBegun && setsOut(op)) collective = later(collective, op);
    }
    return collective ?? this.mostCommon() ?? last ?? step.moments[0].op;
  },

  // What most devices compute now; where none does, what most communicate or copy.
  mostCommon() {
    const {step, t} = this;
    for (const streams of [['compute'], STREAMS.slice(1)]) {
      const counts = new Map();
      for (const stream of streams) {
        for (const rank of step.ranks) {
          const op = step.active(rank, stream, t)?.op;
          if (op) counts.set(op, (counts.get(op) ?? 0) + 1);
        }
      }
      const order = ([a, n], [b, m]) => m - n || b.begin - a.begin;
      if (counts.size) return [...counts].sort(order)[0][0];
    }
    return null;
  },

  // How many moments have come, from 1: it never goes back while time goes on.
  momentNumber() {
    const {moments} = this.step;
    if (this.focus) return moments.findIndex((moment) => moment.op === this.focus) + 1;
    const later = moments.findIndex((moment) => moment.t > this.t);
    return Math.max(1, later < 0 ? moments.length : later);
  },

  // To the next (1) or previous (-1) moment.
  jump(direction) {
    const {moments} = this.step;
    let i;
    if (this.focus) {
      i = moments.findIndex((moment) => moment.op === this.focus) + direction;
    } else {
      const later = moments.findIndex((moment) => moment.t > this.t);
      i = (later < 0 ? moments.length : later) + (direction < 0 ? -1 : 0);
    }
    const to = moments[clamp(i, 0, moments.length - 1)];
    this.play(false);
    this.seek(this.positionOf(to.t), to.op);
    this.remember();
  },

  play(on) {
    if (this.playing === on || !this.step) return;
    this.playing = on;
    if (on && this.s >= 1) this.s = 0;
    this.focus = null;
    this.emit('play');
    if (on) {
      this.ticked = performance.now();
      requestAnimationFrame((now) => this.tick(now));
    } else {
      this.remember();
    }
  },
  tick(now) {
    if (!this.playing) return;
    if (reducedMotion.matches) {
      this.tickByMoments(now);
    } else {
      const seconds = Math.min(100, Math.max(0, now - this.ticked)) / 1000;
      this.ticked = now;
      this.seek(this.s + seconds * this.speed / this.step.story.seconds);
      if (this.s >= 1) this.play(false);
    }
    requestAnimationFrame((later) => this.tick(later));
  },
  tickByMoments(now) {  // nothing glides
    if (now - this.ticked < 1400 / this.speed) return;
    this.ticked = now;
    const next = this.step.moments.find((moment) => moment.t > this.t + 1);
    if (!next) return this.play(false);
    this.seek(this.positionOf(next.t), next.op);
  },

  // #run=zero2&at=0.41 is a link to a moment.
  remember() {
    try {
      history.replaceState(
          null, '', `#run=${encodeURIComponent(this.run.id)}&at=${this.s.toFixed(4)}`);
    } catch {
      // Some browsers refuse this for files.
    }
  },
  recall() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    if (wanted.get('run')) this.select(wanted.get('run'));
    if (wanted.get('at') && this.step) this.seek(Number(wanted.get('at')) || 0);
  },
};
