// SPDX-License-Identifier: Apache-2.0
//
// CaptionPanel: on top of the player. What happens now, in words and as a formula; how much has
// been sent; the time. Screen readers hear it when the player rests.

class CaptionPanel {
  constructor(step) {
    this.step = step;
    this.goal = movedPsi(step.run);
    this.allBytes = step.sent(step.duration);
    this.title = el('span', {});
    this.place = el('i', {});
    this.text = el('p', {class: 'text'});
    this.formula = el('p', {class: 'formula'});
    this.spoken = el('div', {class: 'visually-hidden', 'aria-live': 'polite'});
    this.sent = el('b', {});
    this.clock = el('b', {});
    const meter =
        el('div', {class: 'meter'}, el('div', {class: 'row'}, 'sent per device', this.sent),
           this.makeBar(), el('div', {class: 'row clock-row'}, 'time in the step', this.clock));
    const words =
        el('div', {}, el('div', {class: 'now'}, this.title, this.place), this.text, this.formula);
    this.element = el('div', {class: 'say'}, words, meter, this.spoken);
  }

  // What has been sent of the step's bytes, with a mark at each Psi.
  makeBar() {
    const bar = (width, name) =>
        svg('rect', {width, height: 8, rx: 2, style: `fill:${color(name)}`});
    this.sentBar = bar(0, 'ink');
    const marks = [];
    for (let psi = 1; psi < this.goal - 0.01; ++psi) {
      const x = psi / this.goal * 100 + '%';
      marks.push(svg('rect', {x, width: 1.5, height: 8, style: `fill:${color('surface')}`}));
    }
    return svg(
        'svg', {width: '100%', height: 8, 'aria-hidden': 'true'}, bar('100%', 'faint'),
        this.sentBar, ...marks);
  }

  show(op) {
    if (this.shown !== op || (this.shownWhilePlaying && !store.playing)) this.showOp(op);
    const {step} = this;
    const {run} = step;
    const microBatch = run.micro_batches > 1 && op.micro_batch >= 0 ?
        `micro-batch ${op.micro_batch + 1} of ${run.micro_batches}, ` :
        '';
    const where = whereItRuns(step, op, store.t);
    const moment = `moment ${store.momentNumber()} of ${step.moments.length}`;
    write(this.place, [where, microBatch + moment].filter(Boolean).join(' · '));

    const {t} = store;
    const sent = step.sent(t);
    const share = this.allBytes ? sent / this.allBytes : 0;
    const psi = `${(share * this.goal).toFixed(2)} of ${this.goal.toFixed(2)}${space}Ψ`;
    write(this.sent, step.world < 2 ? 'one device: nothing' : `${psi} · ${bytes(sent)}`);
    this.sentBar.setAttribute('width', share * 100 + '%');
    write(this.clock, `${milliseconds(t)} of ${milliseconds(step.duration)}`);
  }

  showOp(op) {
    this.shown = op;
    this.shownWhilePlaying = store.playing;
    const {step} = this;
    const title = opTitle(op);
    const text = opText(op, step);
    const [symbols, numbers, result] = opFormula(op, step);
    write(this.title, store.acrossRuns ? `${step.run.label}: ${title}` : title);
    write(this.text, text);
    const equation = [symbols, numbers].filter(Boolean).join(' = ');
    this.formula.replaceChildren(equation + ' = ', el('b', {}, result));
    if (!store.playing) write(this.spoken, `${title}. ${text} ${symbols} = ${result}.`);
  }
}
