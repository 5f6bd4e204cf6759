// SPDX-License-Identifier: Apache-2.0
//
// StoryClock: the pace at which a step is told. True time would show one long backward and no
// collective; between two events the story takes the square root of the true time, so that a gather
// of 60 us has room beside a backward of 13 ms. Positions in the story run from 0 to 1.

class StoryClock {
  constructor(step) {
    const marks = new Set([0, step.duration]);
    for (const op of step.recorded) marks.add(op.begin).add(Math.min(op.end, step.duration));
    this.times = [...marks].sort((a, b) => a - b);
    const story = [0];
    for (let i = 1; i < this.times.length; ++i) {
      story.push(story[i - 1] + Math.sqrt(this.times[i] - this.times[i - 1]));
    }
    this.positions = story.map((s) => s / story.at(-1));
    this.seconds = clamp(step.moments.length * 0.6, 20, 75);  // to play the step once
  }
  position(t) {
    return StoryClock.map(t, this.times, this.positions);
  }
  time(position) {
    return StoryClock.map(position, this.positions, this.times);
  }
  static map(x, from, to) {
    const i = Math.min(lastNotAfter(from, x), from.length - 2);
    const share = clamp((x - from[i]) / (from[i + 1] - from[i] || 1), 0, 1);
    return to[i] + (to[i + 1] - to[i]) * share;
  }
}

// The time in step `there` that is as far in its forward, backward or step as `t` is in `here`.
function samePoint(here, t, there) {
  if (here === there) return t;
  const from = here.phases.find((phase) => t < phase.end) ?? here.phases.at(-1);
  const to = here.phases.length === there.phases.length ?
      there.phases[here.phases.indexOf(from)] :
      there.phases.find((phase) => phase.name === from.name) ?? there.phases.at(-1);
  const share = clamp((t - from.begin) / (from.end - from.begin || 1), 0, 1);
  return to.begin + share * (to.end - to.begin);
}
